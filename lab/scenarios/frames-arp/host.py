"""Answers ARP and ping over a wire of Ethernet frames.

Arguments: the wire, as fd:NUMBER or udp:LOCAL,REMOTE; the address to answer for.
"""

import socket
import sys

MAC = bytes.fromhex("0200000000fe")


def open_wire(link):
    kind, _, where = link.partition(":")
    if kind == "fd":
        return socket.socket(fileno=int(where))
    local, remote = (address.rsplit(":", 1) for address in where.split(","))
    wire = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    wire.bind((local[0], int(local[1])))
    wire.connect((remote[0], int(remote[1])))
    return wire


def checksum(data):
    total = sum(int.from_bytes(data[i : i + 2], "big") for i in range(0, len(data), 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return (~total & 0xFFFF).to_bytes(2, "big")


def answer(frame, address):
    source, kind = frame[6:12], frame[12:14]
    if kind == b"\x08\x06" and frame[20:22] == b"\x00\x01" and frame[38:42] == address:
        return source + MAC + frame[12:20] + b"\x00\x02" + MAC + address + frame[22:32]
    # IPv4 without options, ICMP echo request.
    if kind == b"\x08\x00" and frame[14] == 0x45 and frame[23] == 1 and frame[34] == 8:
        size = int.from_bytes(frame[16:18], "big")
        header, body = frame[14:34], frame[38 : 14 + size]
        icmp = b"\x00\x00" + checksum(b"\x00\x00\x00\x00" + body + b"\x00" * (len(body) % 2)) + body
        return source + MAC + kind + header[:12] + header[16:20] + header[12:16] + icmp
    return None


wire = open_wire(sys.argv[1])
own = socket.inet_aton(sys.argv[2])
while frame := wire.recv(65536):
    if reply := answer(frame, own):
        wire.send(reply)
        print("answered", frame[12:14].hex(), flush=True)
