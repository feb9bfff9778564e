"""What tasks of asyncio do with the module, beside two nodes of which one is stopped and killed."""

import asyncio
import gc
import os
import pathlib
import selectors
import signal
import struct
import subprocess
import sys
import weakref

import elver

PEER_SOCKET = os.environ["ELVER_TEST_PEER_SOCKET"]
PEER_PID = int(os.environ["ELVER_TEST_PEER_PID"])


async def refused(kind, words, waits):
    try:
        await waits
    except kind as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"it is refused: {words}")


def refused_now(kind, words, call):
    try:
        call()
    except kind as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"it is refused: {words}")


async def cancelled(task):
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return
    raise AssertionError("it is cancelled")


async def goes_to_sleep(*tasks):
    """Until tasks have looked, found nothing, and sleep: each turn of the loop runs each once."""
    for _ in range(5):
        await asyncio.sleep(0)
    assert not any(task.done() for task in tasks)


def numbered(session, words):
    memory = session.alloc(8 * words)
    memory.write(struct.pack(f"={words}Q", *range(words)))
    return memory


async def operations(session):
    memory, target = session.alloc(4096), session.alloc(64)
    vqp = await session.connect_async(session.gid)
    memory.write(b"elver")
    assert await vqp.write_async(memory, 0, 5, target.address, target.rkey) is None
    assert target.read(0, 5) == b"elver"
    target.write(struct.pack("=Q", 40), 8)
    assert await vqp.fetch_add_async(memory, 64, 2, target.address + 8, target.rkey) == 40
    assert await vqp.compare_swap_async(memory, 64, 42, 7, target.address + 8, target.rkey) == 42
    assert vqp.compare_swap(memory, 64, 42, 9, target.address + 8, target.rkey) == 7
    await vqp.read_async(memory, 72, 8, target.address + 8, target.rkey)
    assert struct.unpack("=Q", memory.read(72, 8)) == (7,)
    other = await session.connect_start(session.gid)
    await other.read_async(memory, 80, 8, target.address + 8, target.rkey)
    await other.connect_async(session.gid)
    await refused(elver.Error, "no node 127.255.0.9", session.connect_async("127.255.0.9"))
    await refused(elver.Error, "remote access error", other.read_async(memory, 0, 8, target.address, target.rkey ^ 1))
    heirs = await session.prepare_async(1, [session.gid])
    assert len(heirs) == 1
    preparing = session.prepare_start(1, [session.gid])
    assert len(await preparing) == 1
    await refused(ValueError, "already", preparing.__await__())
    # What is made is a coroutine, which does nothing by itself, and is awaited once.
    reads = vqp.read_async(memory, 0, 8, target.address, target.rkey)
    assert asyncio.iscoroutine(reads) and "Vqp.read_async" in repr(reads)
    memory.write(bytes(8))
    vqp.write(memory, 8, 1, target.address + 32, target.rkey)
    assert memory.read(0, 8) == bytes(8)
    await asyncio.create_task(reads)
    assert memory.read(0, 5) == b"elver"
    await refused(RuntimeError, "awaited already", reads)


async def two_connections(session, peer_gid, target):
    """Each task has what it asked for."""

    async def reads(gid, address, rkey, words, turns):
        vqp, into = await session.connect_async(gid), session.alloc(8)
        for number in range(turns):
            word = number % words
            await vqp.read_async(into, 0, 8, address + 8 * word, rkey)
            assert struct.unpack("=Q", into.read()) == (word,)

    own = numbered(session, 16)
    async with asyncio.TaskGroup() as group:
        group.create_task(reads(session.gid, own.address, own.rkey, 16, 100))
        group.create_task(reads(peer_gid, *target, 64, 100))

    # More than a queue holds, from one Vqp, to a place each.
    vqp, into = await session.connect_async(peer_gid), session.alloc(8 * 1000)
    address, rkey = target
    reading = [vqp.read_async(into, 8 * at, 8, address + 8 * (at % 64), rkey) for at in range(1000)]
    await asyncio.gather(*reading)
    assert struct.unpack("=1000Q", into.read()) == tuple(at % 64 for at in range(1000))


async def messages(session, peer):
    """To several tasks that take them from one Vqp; and back."""
    server, port = peer.bind()
    client = await session.connect_async(peer.gid, port)
    said = session.alloc(64)
    taken = []

    async def takes(memory):
        length, back = await server.recv_async(memory)
        taken.append(memory.read(0, length))
        memory.write(b"heard " + taken[-1])
        await back.send_async(memory, 0, length + 6)

    tasks = [asyncio.create_task(takes(peer.alloc(32))) for _ in range(3)]
    for word in (b"one", b"two", b"three"):
        said.write(word)
        answered = asyncio.create_task(client.recv_async(said, 32))
        await client.send_async(said, 0, len(word))
        length, back = await answered
        assert said.read(32, length) == b"heard " + word and isinstance(back, elver.Vqp)
    await asyncio.gather(*tasks)
    assert taken == [b"one", b"two", b"three"]

    # Of two that wait the first is cancelled, and the next message is the second one's.
    first = asyncio.create_task(server.recv_async(peer.alloc(32)))
    into = peer.alloc(32)
    second = asyncio.create_task(server.recv_async(into))
    await goes_to_sleep(first, second)
    await cancelled(first)
    said.write(b"four")
    await client.send_async(said, 0, 4)
    length, _ = await second
    assert into.read(0, length) == b"four"

    # One that is cancelled when his message is there leaves it to the other.
    first = asyncio.create_task(server.recv_async(peer.alloc(32)))
    second = asyncio.create_task(server.recv_async(into))
    await goes_to_sleep(first, second)
    said.write(b"fifth")
    client.send(said, 0, 5)
    while not wakes(first):
        assert not first.done()
        await asyncio.sleep(0)
    await cancelled(first)
    length, _ = await second
    assert into.read(0, length) == b"fifth"

    # One that comes when a message is there, which is another's, has the next one.
    first = asyncio.create_task(server.recv_async(into))
    await goes_to_sleep(first)
    client.send(said, 0, 5)
    while not wakes(first):
        await asyncio.sleep(0)
    late = server.recv_async(peer.alloc(32))
    late.send(None)
    late.close()
    assert (await first)[0] == 5

    # One that times out leaves its receive, which the next call has copied; one that is too long stays.
    for _ in range(3):
        await refused(TimeoutError, "", asyncio.wait_for(server.recv_async(peer.alloc(32)), 0.01))
    said.write(b"sixth")
    await client.send_async(said, 0, 5)
    await refused(ValueError, "a message of 5 bytes came, and 2 are asked for", server.recv_async(into, 0, 2))
    length, _ = server.recv(into, timeout=10)
    assert into.read(0, length) == b"sixth"

    # Answers of several tasks to one sender go by the same Vqp, and each task hears of the end of its own.
    async def answers(memory):
        for _ in range(20):
            length, back = await server.recv_async(memory)
            await back.send_async(memory, 0, length)

    async def asks(memory):
        for number in range(100):
            memory.write(struct.pack("=Q", number))
            await client.send_async(memory, 0, 8)

    async def hears(memory):
        for number in range(100):
            length, _ = await client.recv_async(memory)
            heard.add(struct.unpack("=Q", memory.read(0, length))[0])

    heard = set()
    async with asyncio.TaskGroup() as group:
        for _ in range(5):
            group.create_task(answers(peer.alloc(32)))
        group.create_task(asks(session.alloc(8)))
        group.create_task(hears(session.alloc(8)))
    assert heard == set(range(100))


def wakes(task):
    """Whether what a task sleeps on is done, and it has not run since."""
    sleeps_on = getattr(task, "_fut_waiter", None)
    return sleeps_on is not None and sleeps_on.done()


def stands(pid):
    """Whether each thread of a process is stopped."""

    def is_stopped(stat):
        try:
            return stat.read_text().rpartition(")")[2].split()[0] == "T"
        except (FileNotFoundError, ProcessLookupError):
            # It has ended since it was listed.
            return True

    return all(map(is_stopped, pathlib.Path(f"/proc/{pid}/task").glob("*/stat")))


async def given_up(session, peer_gid, target):
    """What is under way when nobody waits any more keeps its memory until it has come back."""
    address, rkey = target
    vqp, into = await session.connect_async(peer_gid), session.alloc(8)
    await vqp.read_async(into, 0, 8, address + 8, rkey)

    def given(memory):
        return weakref.ref(memory), vqp.read_async(memory, 0, 8, address, rkey)

    os.kill(PEER_PID, signal.SIGSTOP)
    try:
        while not stands(PEER_PID):
            os.sched_yield()
        by_cancel, reads = given(session.alloc(8))
        task = asyncio.create_task(reads)
        await goes_to_sleep(task)
        await cancelled(task)
        by_time, reads = given(session.alloc(8))
        await refused(TimeoutError, "", asyncio.wait_for(reads, 0.01))
        del task, reads
        gc.collect()
        assert by_cancel() is not None and by_time() is not None
        # Others go on meanwhile.
        own, near = numbered(session, 2), await session.connect_async(session.gid)
        await near.read_async(into, 0, 8, own.address + 8, own.rkey)
        assert struct.unpack("=Q", into.read()) == (1,)
    finally:
        os.kill(PEER_PID, signal.SIGCONT)
    # Behind those, so that they have come back.
    await vqp.read_async(into, 0, 8, address + 16, rkey)
    assert struct.unpack("=Q", into.read()) == (2,)
    assert by_cancel() is None and by_time() is None


async def blocking_calls(session, peer):
    """They take what a task sleeps for, and its waking; it is woken all the same."""
    server, port = peer.bind()
    client, said, into = session.connect(peer.gid, port), session.alloc(8), peer.alloc(8)
    own, near = numbered(peer, 2), peer.connect(peer.gid)
    for _ in range(50):
        takes = asyncio.create_task(server.recv_async(into))
        await goes_to_sleep(takes)
        client.send(said, 0, 8)
        for _ in range(10):
            near.read(into, 0, 8, own.address, own.rkey)
            peer.alloc(8)
        assert (await takes)[0] == 8


async def much_at_once(session, gids):
    """Answers and completions come in each other's looks: none is left lying."""
    own, into = numbered(session, 64), session.alloc(8 * 16)

    async def works(at):
        for turn in range(50):
            vqp = await session.connect_async(gids[(at + turn) % len(gids)])
            failed = asyncio.create_task(vqp.failure_async())
            near = await session.connect_start(session.gid)
            await near.read_async(into, 8 * at, 8, own.address + 8 * turn, own.rkey)
            assert struct.unpack("=Q", into.read(8 * at, 8)) == (turn,)
            await cancelled(failed)

    await asyncio.gather(*(works(at) for at in range(16)))


async def rests(session, selector):
    """The loop sleeps while tasks wait, also for what never comes."""
    server, _ = session.bind()
    vqp = await session.connect_async(session.gid)
    tasks = [asyncio.create_task(server.recv_async(session.alloc(8))) for _ in range(3)]
    tasks.append(asyncio.create_task(vqp.failure_async()))
    # An answer that nobody has asked for yet, which is no reason to look again and again.
    going = session.connect_start(session.gid)
    await goes_to_sleep(*tasks)
    before = selector.selects
    await asyncio.sleep(0.3)
    assert selector.selects - before < 20, selector.selects - before
    await going
    for task in tasks:
        await cancelled(task)


DIES = """
import sys, elver
session = elver.Session()
memory = session.alloc(64)
server, port = session.bind()
print(port, memory.address, memory.rkey, flush=True)
length, back = server.recv(memory)
back.send(memory, 0, length)
sys.stdin.read()
"""


async def peer_dies(session, peer_gid):
    """A process, while one task waits for its message and another one for its end."""
    environment = os.environ | {"ELVER_SOCKET": PEER_SOCKET}
    dies = subprocess.Popen(
        [sys.executable, "-c", DIES], env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        port, address, rkey = map(int, dies.stdout.readline().split())
        vqp, into = await session.connect_async(peer_gid, port), session.alloc(64)
        answered = asyncio.create_task(vqp.recv_async(into))
        await vqp.send_async(into, 0, 8)
        await answered
        await vqp.read_async(into, 0, 64, address, rkey)
        takes = asyncio.create_task(vqp.recv_async(into))
        ends = asyncio.create_task(vqp.failure_async())
        await goes_to_sleep(takes, ends)
    finally:
        dies.kill()
        dies.wait()
    assert "is gone" in await ends
    await refused(elver.Error, "", takes)
    await refused(elver.Error, "", vqp.read_async(into, 0, 64, address, rkey))
    assert session.is_open


async def beside_another(session):
    """A Vqp to a session of its own at the peer's node, with which it has exchanged messages; and that."""
    other = elver.Session(PEER_SOCKET)
    server, port = other.bind()
    vqp, said, heard = await session.connect_async(other.gid, port), session.alloc(8), other.alloc(8)
    await vqp.send_async(said, 0, 8)
    _, back = await server.recv_async(heard)
    await back.send_async(heard, 0, 8)
    await vqp.recv_async(said)
    return vqp, other, server


async def heard_by_another(session):
    """Who hears first that a Vqp has failed tells the tasks that sleep for it: they are woken by nothing else."""
    vqp, other, _server = await beside_another(session)
    ends = asyncio.create_task(vqp.failure_async())
    await goes_to_sleep(ends)
    other.close()
    while vqp.failure is None:
        os.sched_yield()
    assert "is gone" in await ends

    # An operation of its own that is refused says so by its completion alone.
    vqp, into = await session.connect_async(session.gid), session.alloc(8)
    ends = asyncio.create_task(vqp.failure_async())
    await goes_to_sleep(ends)
    refused_now(elver.Error, "remote access error", lambda: vqp.read(into, 0, 8, into.address, into.rkey ^ 1))
    assert "remote access error" in await ends and "remote access error" in vqp.failure
    # Until it is connected anew.
    await vqp.connect_async(session.gid)
    assert vqp.failure is None
    await vqp.read_async(into, 0, 8, into.address, into.rkey)


async def answers_given_up(session, peer):
    """What was posted to a Vqp back to a sender goes on, and comes back, when nobody has the Vqp any more."""
    server, port = session.bind()
    client, said, into = await peer.connect_async(session.gid, port), peer.alloc(8), session.alloc(8)
    await client.send_async(said, 0, 8)
    _, back = await server.recv_async(into)

    def answered(memory):
        memory.write(b"answered")
        return weakref.ref(memory), asyncio.create_task(back.send_async(memory, 0, 8))

    os.kill(PEER_PID, signal.SIGSTOP)
    try:
        while not stands(PEER_PID):
            os.sched_yield()
        answer, task = answered(session.alloc(8))
        await goes_to_sleep(task)
        await cancelled(task)
        del task, back
        gc.collect()
        assert answer() is not None
    finally:
        os.kill(PEER_PID, signal.SIGCONT)
    assert (await client.recv_async(said))[0] == 8 and said.read() == b"answered"
    # It comes back meanwhile, which is no message.
    while answer() is not None:
        refused_now(TimeoutError, "", lambda: server.recv(into, timeout=0.1))
    refused_now(TimeoutError, "", lambda: server.recv(into, timeout=0.1))
    # The next one to have the Vqp has all of it.
    await client.send_async(said, 0, 8)
    _, back = await server.recv_async(into)
    await back.send_async(into, 0, 8)


async def receives_given_up(session):
    """What came back of them, as their Vqp failed, is no message to whoever waits next."""
    vqp, other, _server = await beside_another(session)
    for _ in range(2):
        takes = [asyncio.create_task(vqp.recv_async(session.alloc(8))) for _ in range(2)]
        await goes_to_sleep(*takes)
        for task in takes:
            await cancelled(task)
    other.close()
    assert "is gone" in await vqp.failure_async()
    server, port = session.bind()
    await vqp.connect_async(session.gid, port)
    said, into = session.alloc(8), session.alloc(8)
    await vqp.send_async(said, 0, 8)
    _, back = await server.recv_async(into)
    takes = asyncio.create_task(vqp.recv_async(into))
    await back.send_async(said, 0, 8)
    assert (await takes)[0] == 8


async def closed(gid, selector):
    """While tasks wait for it in each way; and what is made of it fails."""
    watched = len(selector.get_map())
    async with elver.Session() as session:
        server, _ = session.bind()
        vqp, memory = await session.connect_async(gid), session.alloc(64)
        tasks = [asyncio.create_task(server.recv_async(memory)), asyncio.create_task(vqp.failure_async())]
        await goes_to_sleep(*tasks)
    for waits in [*tasks, vqp.read_async(memory, 0, 8, 0, 0), session.connect_async(gid)]:
        await refused(elver.Error, "was closed", waits)
    assert len(selector.get_map()) == watched, "its descriptors are watched no more"
    assert not session.is_open and memory.read(0, 4) == bytes(4)
    await session.close_async()
    session.close()
    with elver.Session() as session:
        assert session.is_open
    try:
        session.alloc(8)
    except elver.Error as error:
        assert "was closed" in str(error)
    else:
        raise AssertionError("it was closed")


async def node_dies(peer):
    server, _ = peer.bind()
    waits = asyncio.create_task(server.recv_async(peer.alloc(8)))
    vqp, into = await session.connect_async(peer.gid), session.alloc(8)
    ends = asyncio.create_task(vqp.failure_async())
    await goes_to_sleep(waits, ends)
    os.kill(PEER_PID, signal.SIGKILL)
    try:
        vqp.read(into, 0, 8, *target)
    except elver.Error:
        pass
    else:
        raise AssertionError("its node is gone")
    # What the call was told is the task's as well.
    assert await ends
    await refused(elver.Error, "node is gone", waits)
    await refused(elver.Error, "node is gone", server.recv_async(peer.alloc(8)) if peer.is_open else waits)


class Selector(selectors.DefaultSelector):
    """Counts how often its loop has slept, or looked."""

    selects = 0

    def select(self, timeout=None):
        self.selects += 1
        return super().select(timeout)


def run(program):
    selector = Selector()
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        runner.run(asyncio.wait_for(program(selector), 140))


session, peer = elver.Session(), elver.Session(PEER_SOCKET)
words = numbered(peer, 64)
target = (words.address, words.rkey)


async def all_of_it(selector):
    await operations(session)
    await two_connections(session, peer.gid, target)
    await messages(session, peer)
    await given_up(session, peer.gid, target)
    await blocking_calls(session, peer)
    await much_at_once(session, [session.gid, peer.gid])
    await rests(session, selector)
    await peer_dies(session, peer.gid)
    await heard_by_another(session)
    await answers_given_up(session, peer)
    await receives_given_up(session)
    await closed(session.gid, selector)


async def another_loop(selector):
    await operations(session)
    await rests(session, selector)
    await node_dies(peer)


def closed_loop():
    """One whose handler of exceptions has a session, for which its tasks have waited."""
    own, loop = elver.Session(), asyncio.SelectorEventLoop()
    loop.set_exception_handler(lambda *_: own)

    async def waits():
        vqp = await own.connect_async(own.gid)
        task = asyncio.create_task(vqp.failure_async())
        await goes_to_sleep(task)
        await cancelled(task)

    loop.run_until_complete(waits())
    loop.close()
    return weakref.ref(loop)


run(all_of_it)
gone = closed_loop()
gc.collect()
assert gone() is None, "it goes, with what it has"
# A loop that was closed is followed by another one.
run(another_loop)
print("all is well")
