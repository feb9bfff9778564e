-- Elver's own headers for Wireshark and tshark: DC packets, and what nodes tell each other
-- (docs/wire.md). What is standard RoCEv2 is left to Wireshark's own dissector, which goes first.
--
--   tshark -r FILE -X lua_script:elver.lua
--   elver capture -w - | wireshark -k -i - -X lua_script:elver.lua
--
-- or copy it to a directory that "Help > About Wireshark > Folders" names as one of Lua plugins.
-- Filters: `elver.dc`, `elver.message.src_vqp == 0x1234`, `elver.control`; a packet's VQPs, where
-- `elver capture` knew them, are in its comment: `frame.comment contains "0x1234"`.

local UDP_PORT = 4791
local BTH, DC_ETH, DC_CONNECT, TOKEN, DETH, RETH, AETH = 12, 12, 24, 8, 8, 16, 4
local ATOMIC_ETH, ATOMIC_ACK_ETH, IMMEDIATE, ICRC, MESSAGE, CONTROL = 28, 8, 4, 4, 32, 16
local TRANSPORT_RC, TRANSPORT_UD, TRANSPORT_DC = 0, 3, 6
local MESSAGE_VERSION, CONTROL_VERSION = 4, 4

local elver = Proto("elver", "Elver")

local operations = {
  [0] = "SEND First", "SEND Middle", "SEND Last", "SEND Last with Immediate", "SEND Only",
  "SEND Only with Immediate", "RDMA WRITE First", "RDMA WRITE Middle", "RDMA WRITE Last",
  "RDMA WRITE Last with Immediate", "RDMA WRITE Only", "RDMA WRITE Only with Immediate",
  "RDMA READ Request", "RDMA READ Response First", "RDMA READ Response Middle",
  "RDMA READ Response Last", "RDMA READ Response Only", "Acknowledge", "ATOMIC Acknowledge",
  "CmpSwap", "FetchAdd", [22] = "SEND Last with Invalidate", [23] = "SEND Only with Invalidate",
}
local SEND_FIRST, SEND_ONLY, SEND_ONLY_IMM, ATOMIC_ACK = 0, 4, 5, 18
local has_reth = { [6] = true, [10] = true, [11] = true, [12] = true }
local has_aeth = { [13] = true, [15] = true, [16] = true, [17] = true, [18] = true }
local has_atomic = { [19] = true, [20] = true }
local has_word = { [3] = true, [5] = true, [9] = true, [11] = true, [22] = true, [23] = true }

local mtus = { [1] = "256", [2] = "512", [3] = "1024", [4] = "2048", [5] = "4096" }
local syndromes = {
  [0x60] = "NAK: PSN sequence", [0x61] = "NAK: invalid request", [0x62] = "NAK: remote access",
  [0x63] = "NAK: remote operation", [0x7e] = "NAK: prove where you are", [0x7f] = "NAK: no context",
}
local message_kinds = {
  "eager", "rendezvous", "write with immediate", "fin", "nack", "query", "revoke", "unknown", "ask",
  "halt", "grant", "credit probe", "gone",
}
local control_kinds = {
  [1] = "RC connect", [2] = "RC close", [3] = "tell the record", [4] = "RC fate",
  [5] = "are you there",
  [0x81] = "RC accepted", [0x82] = "RC closed", [0x83] = "record", [0x84] = "busy",
  [0x85] = "refused", [0x86] = "working", [0x87] = "fate",
  [0x88] = "there",
}

local fields = {}
-- Declares a field under its whole name.
local function field(kind, name, title, ...)
  fields[name] = ProtoField[kind]("elver." .. name, title, ...)
end

field("none", "dc", "Dynamically connected transport")
field("uint8", "dc.operation", "Operation", base.DEC, operations, 0x1f)
field("uint8", "dc.version", "Version", base.DEC, nil, 0xf0)
field("bool", "dc.token_flag", "TOKEN", 8, nil, 0x02)
field("bool", "dc.connect_flag", "CONNECT", 8, nil, 0x01)
field("uint24", "dc.src_qpn", "Source QPN", base.HEX)
field("uint24", "dc.dest_qpn", "Destination QPN", base.HEX)
field("uint32", "dc.session", "Session", base.HEX)
field("uint16", "dc.stream", "Stream", base.DEC)
field("uint16", "dc.fill", "Bytes of fill", base.DEC)
field("uint64", "dc.token", "Token", base.HEX)
field("uint64", "dc.access_key", "Access key", base.HEX)
field("uint8", "dc.mtu", "Path MTU", base.DEC, mtus)
field("uint64", "dc.va", "Virtual address", base.HEX)
field("uint32", "dc.rkey", "Remote key", base.HEX)
field("uint32", "dc.length", "DMA length", base.DEC)
field("uint8", "dc.syndrome", "Syndrome", base.HEX, syndromes)
field("uint24", "dc.msn", "Message sequence number", base.DEC)
field("uint64", "dc.swap_add", "Swap or add", base.HEX)
field("uint64", "dc.compare", "Compare", base.HEX)
field("uint64", "dc.original", "Original value", base.HEX)
field("uint32", "dc.word", "Immediate data or key", base.HEX)
field("bytes", "dc.payload", "Payload")

field("none", "message", "Message between nodes")
field("uint8", "message.version", "Version", base.DEC, nil, 0x7f)
field("bool", "message.to_port", "To a port", 8, nil, 0x80)
field("uint8", "message.kind", "Kind", base.DEC, message_kinds, 0x7f)
field("bool", "message.has_imm", "With immediate data", 8, nil, 0x80)
field("uint16", "message.detail", "Detail", base.DEC)
field("uint16", "message.tag", "Tag of the sender's record", base.HEX)
field("uint32", "message.dst_port", "To port", base.DEC)
field("uint32", "message.dst_vqp", "To VQP", base.HEX)
field("uint32", "message.src_vqp", "From VQP", base.HEX)
field("uint32", "message.imm", "Immediate data", base.HEX)
field("uint32", "message.length", "Bytes of the user's message", base.DEC)
field("uint32", "message.sequence", "Cookie: number", base.DEC)
field("uint32", "message.secret", "Cookie: secret", base.HEX)

field("none", "control", "Control message between nodes")
field("uint8", "control.version", "Version", base.DEC)
field("uint8", "control.kind", "Kind", base.HEX, control_kinds)
field("uint64", "control.id", "Id of the request", base.HEX)
field("uint32", "control.qpn", "QPN", base.HEX)
field("uint32", "control.peer_qpn", "QPN of the peer", base.HEX)
field("uint32", "control.psn", "PSN", base.HEX)
field("uint32", "control.retry_after", "Ask again after, in µs", base.DEC)
elver.fields = fields

-- A reader that stands at a place of what was captured, and goes no further.
local function reader(tvb, at, limit)
  local self = { at = at }
  function self.has(count) return self.at + count <= limit end
  function self.take(count)
    local range = tvb(self.at, count)
    self.at = self.at + count
    return range
  end
  function self.rest() return limit - self.at end
  return self
end

-- The header of a message between nodes, at the beginning of a SEND's payload.
local function message(read, pinfo, tree)
  if not read.has(MESSAGE) then return false end
  local range = read.take(MESSAGE)
  local version = bit.band(range(2, 1):uint(), 0x7f)
  if range(0, 2):string() ~= "EM" or version ~= MESSAGE_VERSION then return false end
  local kind = bit.band(range(3, 1):uint(), 0x7f)
  local to_port = range(2, 1):uint() >= 0x80
  local own = tree:add(fields["message"], range)
  own:add(fields["message.version"], range(2, 1))
  own:add(fields["message.to_port"], range(2, 1))
  own:add(fields["message.kind"], range(3, 1))
  own:add(fields["message.has_imm"], range(3, 1))
  own:add_le(fields["message.detail"], range(4, 2))
  own:add_le(fields["message.tag"], range(6, 2))
  own:add_le(fields[to_port and "message.dst_port" or "message.dst_vqp"], range(8, 4))
  own:add_le(fields["message.src_vqp"], range(12, 4))
  if range(3, 1):uint() >= 0x80 then own:add_le(fields["message.imm"], range(16, 4)) end
  own:add_le(fields["message.length"], range(20, 4))
  own:add_le(fields["message.sequence"], range(24, 4))
  own:add_le(fields["message.secret"], range(28, 4))
  local form = to_port and "VQP %#x -> port %d" or "VQP %#x -> VQP %#x"
  local told = string.format(form, range(12, 4):le_uint(), range(8, 4):le_uint())
  told = string.format("%s, %s", message_kinds[kind] or "kind " .. kind, told)
  own:append_text(": " .. told)
  pinfo.cols.info:append(" [" .. told .. "]")
  return true
end

-- A control message, the payload of a datagram.
local function control(read, pinfo, tree)
  if not read.has(CONTROL) then return false end
  local head = read.take(CONTROL)
  if head(0, 4):string() ~= "ElvC" or head(4, 1):uint() ~= CONTROL_VERSION then return false end
  local kind = head(5, 1):uint()
  local own = tree:add(fields["control"], head)
  own:add(fields["control.version"], head(4, 1))
  own:add(fields["control.kind"], head(5, 1))
  own:add_le(fields["control.id"], head(8, 8))
  local body = ({
    [1] = { "control.qpn", "control.psn" },
    [0x81] = { "control.qpn", "control.psn" },
    [2] = { "control.qpn", "control.peer_qpn" },
    [4] = { "control.qpn", "control.peer_qpn", "control.psn" },
    [0x84] = { "control.retry_after" },
    [0x87] = { "control.psn" },
  })[kind] or {}
  for _, name in ipairs(body) do
    if read.has(4) then own:add_le(fields[name], read.take(4)) end
  end
  local told = control_kinds[kind] or string.format("kind %#x", kind)
  own:append_text(": " .. told)
  pinfo.cols.info:append(" [" .. told .. "]")
  return true
end

-- A DC packet behind its BTH.
local function dc(tvb, read, operation, pinfo, tree)
  if not read.has(DC_ETH) then return end
  local own = tree:add(fields["dc"], tvb(0, tvb:len()))
  own:add(fields["dc.operation"], tvb(0, 1))
  own:add(fields["dc.dest_qpn"], tvb(5, 3))
  local eth = read.take(DC_ETH)
  local flags = eth(0, 1):uint()
  local fill = eth(10, 2):uint()
  own:add(fields["dc.version"], eth(0, 1))
  own:add(fields["dc.token_flag"], eth(0, 1))
  own:add(fields["dc.connect_flag"], eth(0, 1))
  own:add(fields["dc.src_qpn"], eth(1, 3))
  own:add(fields["dc.session"], eth(4, 4))
  own:add(fields["dc.stream"], eth(8, 2))
  own:add(fields["dc.fill"], eth(10, 2))
  local name = "DC " .. (operations[operation] or "operation " .. operation)
  local told = string.format("%s, %#x -> %#x, session %#x", name, eth(1, 3):uint(),
    tvb(5, 3):uint(), eth(4, 4):uint())
  if bit.band(flags, 1) ~= 0 and read.has(DC_CONNECT) then
    local connect = read.take(DC_CONNECT)
    own:add(fields["dc.access_key"], connect(0, 8))
    own:add(fields["dc.token"], connect(8, 8))
    own:add(fields["dc.mtu"], connect(16, 1))
    told = told .. ", connects"
  elseif bit.band(flags, 2) ~= 0 and read.has(TOKEN) then
    own:add(fields["dc.token"], read.take(TOKEN))
  end
  if has_aeth[operation] and read.has(AETH) then
    local aeth = read.take(AETH)
    own:add(fields["dc.syndrome"], aeth(0, 1))
    own:add(fields["dc.msn"], aeth(1, 3))
    local syndrome = syndromes[aeth(0, 1):uint()]
    if syndrome then told = told .. ", " .. syndrome end
  end
  if operation == ATOMIC_ACK and read.has(ATOMIC_ACK_ETH) then
    own:add(fields["dc.original"], read.take(ATOMIC_ACK_ETH))
  end
  if has_reth[operation] and read.has(RETH) then
    local reth = read.take(RETH)
    own:add(fields["dc.va"], reth(0, 8))
    own:add(fields["dc.rkey"], reth(8, 4))
    own:add(fields["dc.length"], reth(12, 4))
  end
  if has_atomic[operation] and read.has(ATOMIC_ETH) then
    local atomic = read.take(ATOMIC_ETH)
    own:add(fields["dc.va"], atomic(0, 8))
    own:add(fields["dc.rkey"], atomic(8, 4))
    own:add(fields["dc.swap_add"], atomic(12, 8))
    own:add(fields["dc.compare"], atomic(20, 8))
  end
  if has_word[operation] and read.has(IMMEDIATE) then
    own:add(fields["dc.word"], read.take(IMMEDIATE))
  end
  if fill > 0 and read.has(fill) then read.take(fill) end
  if read.rest() > 0 then own:add(fields["dc.payload"], tvb(read.at, read.rest())) end
  own:append_text(": " .. told)
  pinfo.cols.protocol = "Elver DC"
  pinfo.cols.info = told
end

local rocev2 = DissectorTable.get("udp.port"):get_dissector(UDP_PORT)

function elver.dissector(tvb, pinfo, tree)
  if rocev2 then rocev2:call(tvb, pinfo, tree) end
  if tvb:len() < BTH then return end
  local opcode = tvb(0, 1):uint()
  local transport, operation = bit.rshift(opcode, 5), bit.band(opcode, 0x1f)
  -- Padding and the ICRC are no payload, where they were captured.
  local padding = bit.band(bit.rshift(tvb(1, 1):uint(), 4), 3)
  local limit = math.min(tvb:len(), tvb:reported_len() - ICRC - padding)
  local read = reader(tvb, BTH, limit)
  local own = tree:add(elver, tvb(0, tvb:len()))
  local is_ours = false
  if transport == TRANSPORT_DC then
    dc(tvb, read, operation, pinfo, own)
    is_ours = true
  elseif transport == TRANSPORT_UD and read.has(DETH) then
    read.take(DETH)
    is_ours = control(read, pinfo, own)
  end
  local begins = operation == SEND_FIRST or operation == SEND_ONLY or operation == SEND_ONLY_IMM
  if begins and (transport == TRANSPORT_DC or transport == TRANSPORT_RC) then
    is_ours = message(read, pinfo, own) or is_ours
  end
  -- What is Wireshark's alone has no tree of ours.
  own:set_hidden(not is_ours)
end

DissectorTable.get("udp.port"):add(UDP_PORT, elver)
