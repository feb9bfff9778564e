"""Runs an OpenWhisk action in Python: an INIT process that imports it, and forks for each activation.

elver-action starts it with the action's file and the name of its function. It speaks ActionLoop: requests come
as lines of JSON on standard input, answers go as lines on descriptor 3, the first of which says that it is there.
"""

import json
import os
import select
import signal
import sys
import threading
import time
import traceback
import zipfile

# Where an image has the module `elver`.
sys.path.insert(1, "/opt/elver")
os.environ.setdefault("ELVER_SOCKET", "/run/elver/elverd.sock")

import _elver_strays as strays
import elver_context

# How long an activation may take that has no deadline, in seconds: OpenWhisk's most.
TIME_MAX_S = 300

# The longest answer, in bytes.
ANSWER_MAX = 6 << 20


def unpack(file):
    """The directory of an archive, or of the one file that there is."""
    if not zipfile.is_zipfile(file):
        directory = os.path.dirname(file)
        os.rename(file, os.path.join(directory, "__main__.py"))
        return directory
    directory = file + ".d"
    with zipfile.ZipFile(file) as archive:
        # It strips what would lead out of the directory.
        archive.extractall(directory)
    return directory


def run_program(directory):
    """What is no Python takes this process over, if there is such a thing."""
    for program in (os.path.join(directory, "exec"), os.path.join(directory, "bin", "exec")):
        if os.path.isfile(program):
            os.chmod(program, 0o755)
            if not os.environ.get("__OW_WAIT_FOR_ACK"):
                os.write(3, b'{"ok":true}\n')
            os.chdir(directory)
            os.execv(program, [program])


def load(directory, name):
    """The action's function."""
    virtual = os.path.join(directory, "virtualenv", "bin", "activate_this.py")
    if os.path.exists(virtual):
        with open(virtual) as file:
            exec(compile(file.read(), virtual, "exec"), {"__file__": virtual, "__name__": "__main__"})
    sys.path.insert(0, directory)
    os.chdir(directory)
    path = os.path.join(directory, "__main__.py")
    module = type(sys)("main__")
    module.__file__ = path
    sys.modules["main__"] = module
    with open(path) as file:
        exec(compile(file.read(), path, "exec"), module.__dict__)
    return getattr(module, name)


def call(function, request):
    """The function's answer as a line."""
    try:
        for key, value in request.items():
            if key != "value":
                os.environ["__OW_" + key.upper()] = value if isinstance(value, str) else json.dumps(value)
        answer = json.dumps(function(request.get("value") or {}), ensure_ascii=False).encode()
        if len(answer) >= ANSWER_MAX:
            raise ValueError(f"an answer has less than {ANSWER_MAX} bytes; this one has {len(answer)}")
    except Exception as error:
        print(traceback.format_exc(), file=sys.stderr)
        answer = failure(str(error))
    strays.flush()
    return answer + b"\n"


def with_request(answer, line):
    """The answer to a line, which may be of a form that Python does not take: too deep, or with too long numbers."""
    try:
        request = json.loads(line)
    except (ValueError, RecursionError) as error:
        return failure(f"the request cannot be read: {error}") + b"\n"
    return answer(request)


def failure(what):
    # It may have halves of characters, which JSON has escapes for, and no encoding a form.
    text = what.encode(errors="backslashreplace").decode()
    return json.dumps({"error": text}, ensure_ascii=False).encode()


def time_left(request):
    """Seconds until the request's deadline."""
    try:
        left = int(request["deadline"]) / 1000 - time.time()
    except (KeyError, TypeError, ValueError, OverflowError):
        return TIME_MAX_S
    return min(max(left, 0), TIME_MAX_S)


class Init:
    """The INIT process: it has the action's function, and forks."""

    def __init__(self, function, requests, answers):
        self.function = function
        self.requests = requests
        self.answers = answers
        self.ready = elver_context.READY

    def serve(self):
        if self.ready.ahead:
            self.ready.ahead.settle()
        for line in self.requests:
            self.answer(with_request(self.activate, line))

    def answer(self, line):
        with memoryview(line) as left:
            while left:
                left = left[os.write(self.answers, left) :]

    def activate(self, request):
        """The answer of a child of its own."""
        ahead = self.ready.ahead
        session = ahead.choose() if ahead else None
        reading, writing = os.pipe()
        strays.flush()
        try:
            pid = os.fork()
        except OSError as error:
            os.close(reading)
            os.close(writing)
            return failure(f"the action cannot be forked: {error}") + b"\n"
        if pid == 0:
            self.child(request, session, reading, writing)
        os.close(writing)
        if ahead:
            ahead.assign(session, pid)
        line = self.hear(reading, time.monotonic() + time_left(request))
        os.close(reading)
        # It has answered, or may not any more; its threads and processes neither.
        os.kill(pid, signal.SIGKILL)
        status = os.waitpid(pid, 0)[1]
        strays.end(set())
        if ahead:
            ahead.ended(pid)
        if line is not None:
            return line
        code = os.waitstatus_to_exitcode(status)
        why = f"exit code {code}" if code >= 0 else f"signal {-code}"
        return failure(f"the action's process ended without an answer: {why}") + b"\n"

    def child(self, request, session, reading, writing):
        code = 1
        try:
            for descriptor in (reading, self.answers, self.requests.fileno()):
                os.close(descriptor)
            strays.keep()
            self.ready.child(session)
            with os.fdopen(writing, "wb") as answers:
                answers.write(call(self.function, request))
            code = 0
        finally:
            strays.flush()
            # Whatever it was, the parent's part of the program is the parent's.
            os._exit(code)

    def hear(self, reading, until):
        """A line, from who has time until then. None if it ends before."""
        line = bytearray()
        while True:
            heard, _, _ = select.select([reading], [], [], max(0, until - time.monotonic()))
            if not heard:
                return failure("the action did not answer by its deadline, and was ended") + b"\n"
            more = os.read(reading, 1 << 16)
            line += more
            # What is written behind it would be the next activation's answer.
            end = line.find(b"\n", len(line) - len(more)) + 1
            if 0 < end <= ANSWER_MAX:
                return bytes(line[:end])
            if not more or len(line) > ANSWER_MAX:
                return None


def main():
    file, name = sys.argv[1:]
    answers = os.dup(3)
    requests = os.fdopen(os.dup(0), "rb")
    directory = unpack(file)
    run_program(directory)
    os.close(3)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    sessions = int(os.environ.get("ELVER_SESSIONS", "4"))
    destinations = os.environ.get("ELVER_DESTINATIONS", "").split()
    unassigned = int(os.environ.get("ELVER_UNASSIGNED", "2" if destinations else "0"))
    leased = elver_context.is_leased(os.environ.get("ELVER_CONNECTIONS", "shared"))
    elver_context.READY.start(destinations, unassigned, sessions, 2 * sessions, leased)
    try:
        function = load(directory, name)
    except BaseException:
        traceback.print_exc()
        sys.exit(1)
    strays.keep()
    init = Init(function, requests, answers)
    init.answer(b'{"ok":true}\n')
    # Threads are not forked: an action that has some when it is imported is run here, and so is one that says so.
    if os.environ.get("ELVER_FORK") != "no" and threading.active_count() == 1:
        init.serve()
    else:
        for line in requests:
            init.answer(with_request(lambda request: call(function, request), line))


main()
