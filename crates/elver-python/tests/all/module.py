"""What Python programs do with the module, against a node; ELVER_SOCKET says where it is."""

import gc
import os
import signal
import struct
import sys
import threading
import time

import elver


def refused(kind, words, call):
    try:
        call()
    except kind as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"it is refused: {words}")


session = elver.Session()
node = session.gid.removeprefix("::ffff:")

# Memory is a buffer, and a view of it outlives its name.
memory = session.alloc(4096)
view = memoryview(memory)
assert len(memory) == 4096 and len(view) == 4096 and not view.readonly
view[:5] = b"elver"
assert memory.read(0, 5) == b"elver" and memory.read(4094) == b"\0\0"
memory.write(b"!", 5)
assert bytes(view[:6]) == b"elver!"
refused(ValueError, "do not lie in memory of 4096 bytes", lambda: memory.read(4000, 97))
refused(ValueError, "do not lie", lambda: memory.read(1 << 63, 1 << 63))
refused(elver.Error, "do not lie", lambda: memory.write(b"12", 4095))
refused(ValueError, "`x` is no right", lambda: session.alloc(8, "rx"))

# One-sided.
target = session.alloc(64)
vqp = session.connect(node)
vqp.write(memory, 0, 6, target.address, target.rkey)
assert target.read(0, 6) == b"elver!"
target.write(struct.pack("=Q", 40), 8)
assert vqp.fetch_add(memory, 64, 2, target.address + 8, target.rkey) == 40
vqp.read(memory, 72, 8, target.address + 8, target.rkey, timeout=10)
assert struct.unpack("=Q", memory.read(72, 8)) == (42,)
refused(ValueError, "is no node", lambda: session.connect("nobody"))
refused(ValueError, "timeout", lambda: vqp.read(memory, 0, 8, target.address, target.rkey, timeout=-1))
# Its key is not to be guessed, and the queue pair fails as on hardware.
bad = session.connect(node)
refused(elver.Error, "remote access error", lambda: bad.read(memory, 0, 8, target.address, target.rkey ^ 1))
refused(elver.Error, "", lambda: bad.read(memory, 0, 8, target.address, target.rkey))
only = session.alloc(64, "r")
bad = session.connect(node)
refused(elver.Error, "remote access error", lambda: bad.write(memory, 0, 8, only.address, only.rkey))

# Without waiting.
going = session.connect_start(node)
going.wait(timeout=10).read(memory, 72, 8, target.address + 8, target.rkey)
assert going.is_done
refused(elver.Error, "already", going.wait)
leased = session.connect(node, leased=True)
leased.read(memory, 72, 8, target.address + 8, target.rkey)
lost = session.connect_start("127.255.0.9")
refused(elver.Error, "meta servers", lambda: lost.wait(timeout=30))
assert lost.is_done

# Messages.
server, port = session.bind()
client = session.connect(node, port)
refused(TimeoutError, "time", lambda: server.recv(target, 0, 16, timeout=0.05))
memory.write(b"a question")
client.send(memory, 0, 10)
length, back = server.recv(target, 16, 16, timeout=10)
# It came into the receive of the call that was given up, whose memory is its own by now.
assert length == 10 and target.read(16, 10) == b"a question" and target.read(0, 6) == b"elver!"
assert isinstance(back, elver.Vqp)
# That was short, and serves for what is longer.
refused(TimeoutError, "time", lambda: server.recv(target, 0, 16, timeout=0.05))
client.send(memory, 0, 4096)
assert server.recv(memory, timeout=10)[0] == 4096
back.send(memory, 0, 10)
assert client.recv(target, 32, timeout=10)[0] == 10 and target.read(32, 10) == b"a question"
for word in (b"one", b"two", b"three"):
    memory.write(word)
    client.send(memory, 0, len(word))
for word in (b"one", b"two", b"three"):
    length, _ = server.recv(target, 32, 16, timeout=10)
    assert target.read(32, length) == word
assert session.is_open

# A wait heeds signals, and lets other threads run.
ran = threading.Event()


def interrupt(*_):
    if ran.is_set():
        raise InterruptedError("by a signal")


signal.signal(signal.SIGALRM, interrupt)
signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
threading.Thread(target=ran.set).start()
refused(InterruptedError, "by a signal", lambda: server.recv(target, 0, 16, timeout=30))
signal.setitimer(signal.ITIMER_REAL, 0)

# A view keeps the memory that its name has let go.
kept = memoryview(session.alloc(100))
kept[99] = 7
assert kept[99] == 7

# A session is its thread's.
told = []


def elsewhere():
    try:
        session.alloc(8)
    except BaseException as error:
        told.append(type(error).__name__)


thread = threading.Thread(target=elsewhere)
thread.start()
thread.join()
assert told, "another thread is refused"

# What the garbage collector frees in another thread goes with its own thread's next call.
class Held:
    pass


def cycle():
    held = Held()
    held.itself, held.memory, held.vqp = held, session.alloc(64), session.connect(node)
    return held.memory.address, held.memory.rkey


def reads(address, rkey):
    session.connect(node).read(memory, 0, 8, address, rkey, timeout=30)


unraisable = []
sys.unraisablehook = unraisable.append
gc.disable()
where = cycle()
reads(*where)
thread = threading.Thread(target=gc.collect)
thread.start()
thread.join()
gc.enable()
sys.unraisablehook = sys.__unraisablehook__
assert not unraisable, unraisable
# The node hears of it some calls later.
over = time.monotonic() + 60
try:
    while time.monotonic() < over:
        reads(*where)
    raise AssertionError("the memory is registered still")
except elver.Error as error:
    assert "remote access error" in str(error), error

# Children inherit.
heirs = session.prepare(2, [node])
assert len(heirs) == 2
assert [heirs.is_connected(*at) for at in ((0, 0), (1, 0), (0, 1), (2, 0))] == [True, True, False, False]
refused(elver.Error, "prepared the sessions for its children", lambda: heirs.take(0))
for _ in range(5):
    while (number := heirs.first_free()) is None:
        os.sched_yield()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            heir = heirs.take(number)
            heir.vqps[0].read(heir.memory, 0, 6, target.address, target.rkey)
            refused(elver.Error, "forked", lambda: session.alloc(8))
            code = 0 if heir.number == number and heir.memory.read(0, 6) == b"elver!" else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
# One that is away is missing in what they inherit, or nothing is prepared.
away = session.prepare_start(1, [node, "127.255.0.9"])
refused(elver.Error, "meta servers", away.wait)
refused(ValueError, "already", away.wait)
preparing = session.prepare_start(1, [node, "127.255.0.9"], must_connect=False)
while not preparing.is_done:
    os.sched_yield()
heirs = preparing.wait()
child = os.fork()
if child == 0:
    code = 1
    try:
        heir = heirs.take(0)
        heir.vqps[0].read(heir.memory, 0, 6, target.address, target.rkey)
        while heir.vqps[1].failure is None:
            os.sched_yield()
        code = 0 if heir.vqps[0].failure is None else 2
    finally:
        os._exit(code)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
print("all is well")
