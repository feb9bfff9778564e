"""Gives back what it gets, or has that done and looks: asyncio over libuv."""

import asyncio
import sys

import uvloop

ROUNDS, CONNECTIONS, PIECE, PIECES = 2, 4, 50_000, 160


async def give_back(reader, writer):
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()


async def serve(port):
    server = await asyncio.start_server(give_back, "127.0.0.1", port)
    await server.serve_forever()


async def send(writer, data):
    for at in range(0, len(data), PIECE):
        writer.write(data[at : at + PIECE])
        await writer.drain()
    writer.write_eof()


async def look(port, seed):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    # A byte there and back first, again and again: it takes a while until a stream carries it.
    for at in range(500):
        byte = bytes([at % 251])
        writer.write(byte)
        assert await reader.readexactly(1) == byte
    data = b"".join(number.to_bytes(4, "big") for number in range(seed, seed + PIECE * PIECES // 4))
    sent = asyncio.ensure_future(send(writer, data))
    got = await reader.read(-1)
    await sent
    assert got == data, f"{len(got)} of {len(data)} bytes"
    writer.close()


async def looks(port):
    for _ in range(ROUNDS):
        await asyncio.gather(*(look(port, seed) for seed in range(CONNECTIONS)))


uvloop.install()
asyncio.run({"serve": serve, "look": looks}[sys.argv[1]](int(sys.argv[2])))
