"""Two processes with a library that moves memory, unmodified: one offers a buffer, the other writes into it and reads it
again; what arrived is compared at both ends. The last line of the one that moves says how fast it wrote.

move.py LIBRARY ROLE ADDRESS PEER PORT SECONDS: ROLE is "target" or "mover", ADDRESS this end's.
"""

import ctypes
import json
import os
import socket
import sys
import time

SIZE = 1 << 20
LIMIT = 30.0

library, role, address, peer, port, seconds = sys.argv[1:]
pattern = bytes(at * 7 % 251 for at in range(SIZE))
buffer = ctypes.create_string_buffer(SIZE if role == "target" else pattern, SIZE)
here = ctypes.addressof(buffer)


class Nixl:
    """NIXL's agent, over UCX."""

    def __init__(self):
        from nixl_cu12._api import nixl_agent, nixl_agent_config

        self.agent = nixl_agent(role, nixl_agent_config(backends=["UCX"]))
        self.registered = self.agent.register_memory([(here, SIZE, 0, "")], mem_type="DRAM")

    def told(self):
        return self.agent.get_agent_metadata()

    def meet(self, told, there):
        self.peer = self.agent.add_remote_agent(told)
        self.local = self.agent.get_xfer_descs([(here, SIZE, 0)], mem_type="DRAM")
        self.remote = self.agent.get_xfer_descs([(there, SIZE, 0)], mem_type="DRAM")

    def move(self, operation):
        handle = self.agent.initialize_xfer(operation, self.local, self.remote, self.peer)
        state, end = self.agent.transfer(handle), time.monotonic() + LIMIT
        while state != "DONE":
            assert state != "ERR" and time.monotonic() < end, f"{operation} came to {state}"
            state = self.agent.check_xfer_state(handle)
        self.agent.release_xfer_handle(handle)

    def end(self):
        """The agent ends with the process."""


class Mooncake:
    """Mooncake's transfer engine."""

    def __init__(self):
        from mooncake.engine import TransferEngine

        protocol = os.environ["MOVE_PROTOCOL"]
        device = "elver0" if protocol == "rdma" else ""
        self.engine = TransferEngine()
        assert self.engine.initialize(address, "P2PHANDSHAKE", protocol, device) == 0
        assert self.engine.register_memory(here, SIZE) == 0

    def told(self):
        return f"{address}:{self.engine.get_rpc_port()}".encode()

    def meet(self, told, there):
        self.peer, self.there = told.decode(), there

    def move(self, operation):
        move = {
            "WRITE": self.engine.transfer_sync_write,
            "READ": self.engine.transfer_sync_read,
        }[operation]
        assert move(self.peer, here, self.there, SIZE) == 0, operation

    def end(self):
        assert self.engine.unregister_memory(here) == 0


class DLSlime:
    """DLSlime's endpoints, with two QPs each."""

    def __init__(self):
        from dlslime import RDMAEndpoint

        self.endpoint = RDMAEndpoint("elver0", 1, "RoCE", 2)
        self.local = self.endpoint.register_memory_region("buffer", here, 0, SIZE)

    def told(self):
        return json.dumps([self.endpoint.endpoint_info(), self.endpoint.mr_info()]).encode()

    def meet(self, told, there):
        peer, regions = json.loads(told)
        self.endpoint.connect(peer)
        assert regions["buffer"]["addr"] == there
        self.remote = self.endpoint.register_remote_memory_region("buffer", regions["buffer"])

    def move(self, operation):
        move = {"WRITE": self.endpoint.write, "READ": self.endpoint.read}[operation]
        move([(self.local, self.remote, 0, 0, SIZE)]).wait()

    def end(self):
        self.endpoint.shutdown()


def meeting():
    if role == "target":
        listener = socket.create_server((address, int(port)))
        listener.settimeout(LIMIT)
        return listener.accept()[0]
    end = time.monotonic() + LIMIT
    while True:
        try:
            return socket.create_connection((peer, int(port)), LIMIT)
        except OSError:
            assert time.monotonic() < end, "nobody to meet"
            time.sleep(0.05)


engine = {"nixl": Nixl, "mooncake": Mooncake, "dlslime": DLSlime}[library]()
stream = meeting()
stream.settimeout(LIMIT + float(seconds))
both = stream.makefile("rwb")


def tell(said):
    both.write(len(said).to_bytes(4, "big") + said)
    both.flush()


def hear():
    return both.read(int.from_bytes(both.read(4), "big"))


tell(engine.told())
told = hear()
tell(str(here).encode())
engine.meet(told, int(hear()))
if role == "target":
    assert hear() == b"written"
    assert buffer.raw == pattern, "what was written is not what arrived"
    tell(b"same")
    assert hear() == b"end"
    engine.end()
    print("same", flush=True)
else:
    engine.move("WRITE")
    tell(b"written")
    assert hear() == b"same"
    ctypes.memset(here, 0, SIZE)
    engine.move("READ")
    assert buffer.raw == pattern, "what was read is not what stood there"
    count, begun = 0, time.monotonic()
    while time.monotonic() - begun < float(seconds):
        engine.move("WRITE")
        count += 1
    rate = count * SIZE / 1e6 / (time.monotonic() - begun)
    tell(b"end")
    engine.end()
    print(f"same, {rate:.0f} MB/s", flush=True)
if os.environ.get("UCX_TLS") == "tcp":
    # UCX crashes then when it is taken down, with no library under it.
    os._exit(0)
