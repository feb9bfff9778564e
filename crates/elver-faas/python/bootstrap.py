"""Runs a function's handler in a container: imports it, runs the first request itself, then forks for each; or runs
all of them itself where there are threads, which a child would not have.

elver-init starts it. Standard input is the socket of orders and reports, a line of JSON each; the
function's standard input is empty. Requests come from the Lambda Runtime API over a Unix socket, or over
loopback where awslambdaric asks for them.
"""

import http.client
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections import deque

import _elver_strays as strays
import elver_context

API = "/2018-06-01/runtime/"

# How often to look whether there are threads, and how long until then, in seconds: one that was joined is there still, and
# on a busy machine for longer.
LOOKS = 5
LOOKS_MAX = 100
LOOK_S = 0.001

# The largest answer, in bytes.
ANSWER_MAX = 6 << 20


class Connection(http.client.HTTPConnection):
    """HTTP over the Unix socket of the process's Runtime API."""

    def __init__(self, path):
        super().__init__("localhost")
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(self.path)

    def ask(self, method, path, body=None, headers={}):
        """An answer, and its body. A connection that was lost meanwhile is made anew, once."""
        try:
            return self.ask_once(method, path, body, headers)
        except (ConnectionError, http.client.NotConnected, http.client.BadStatusLine):
            self.close()
            return self.ask_once(method, path, body, headers)

    def ask_once(self, method, path, body, headers):
        self.request(method, API + path, body, headers)
        answer = self.getresponse()
        return answer, answer.read()


class Context:
    """What a handler learns of its invocation, with the names that Lambda's Python has for it; and its RDMA."""

    def __init__(self, headers):
        # Of what Lambda has and nobody here, there is nothing.
        self.identity = self.client_context = None
        self.aws_request_id = headers["Lambda-Runtime-Aws-Request-Id"]
        self.invoked_function_arn = headers["Lambda-Runtime-Invoked-Function-Arn"]
        self.function_name = os.environ["AWS_LAMBDA_FUNCTION_NAME"]
        self.function_version = "$LATEST"
        self.log_group_name = os.environ["AWS_LAMBDA_LOG_GROUP_NAME"]
        self.log_stream_name = os.environ["AWS_LAMBDA_LOG_STREAM_NAME"]
        self.memory_limit_in_mb = os.environ["AWS_LAMBDA_FUNCTION_MEMORY_SIZE"]
        self.deadline_ms = int(headers["Lambda-Runtime-Deadline-Ms"])
        self.start = headers["Elver-Start"]
        self.destinations = os.environ["ELVER_DESTINATIONS"].split()

    def log(self, message):
        print(message, end="")

    def get_remaining_time_in_millis(self):
        return max(0, self.deadline_ms - int(time.time() * 1000))

    @property
    def device(self):
        return elver_context.current().device

    @property
    def pd(self):
        return elver_context.current().pd

    @property
    def qps(self):
        return elver_context.current().qps

    @property
    def mr(self):
        return elver_context.current().mr


def failure(error):
    """An exception in the form of Lambda's errors."""
    return json.dumps(
        {
            "errorType": type(error).__name__,
            "errorMessage": str(error),
            "stackTrace": traceback.format_tb(error.__traceback__),
        }
    ).encode()


class Gone(SystemExit):
    """Nobody waits for the request any more."""


def look_for_threads():
    """Whether there are others than this one, also of modules in C."""
    for look in range(LOOKS_MAX):
        if len(os.listdir("/proc/self/task")) == 1:
            return False
        threading = sys.modules.get("threading")
        if look >= LOOKS and threading and threading.active_count() > 1:
            # Python knows of one that goes on.
            break
        time.sleep(LOOK_S)
    elver_context.say("there are threads, which a child would not have", "requests run one after the other")
    return True


def plain(value):
    """What JSON has no form for, as Lambda writes it."""
    decimal = sys.modules.get("decimal")
    if decimal and isinstance(value, decimal.Decimal):
        return float(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")


class Init:
    """The INIT process: it has imported the handler, and forks."""

    def __init__(self, control):
        self.control = control
        self.ready = elver_context.READY
        self.buffer = b""
        self.orders = deque()
        self.has_threads = False
        # The request that this process runs itself.
        self.own = None
        self.pids = {}
        self.requests = {}
        # A byte a signal, so that waiting for orders ends when a child has.
        self.woken, wake = os.pipe()
        os.set_blocking(self.woken, False)
        os.set_blocking(wake, False)
        self.wake = wake
        self.heed_ends()

    def heed_ends(self):
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.wake, warn_on_full_buffer=False)

    def begin(self):
        """Takes orders from here on."""
        # Nobody else writes what its own request left in buffers, until one is forked.
        strays.flush()
        if self.has_threads:
            # What has been started is the handler's own, as its threads are.
            self.send("has_threads")
        else:
            # A handler may have set others.
            self.heed_ends()
            # What its own request left. Lambda's own client has that run by a child, which is there already.
            strays.end(self.requests.keys())
            # Of one that ended before this heeded it, nobody has told.
            self.reap()
        if self.ready.ahead:
            self.ready.ahead.settle()
        self.send("serving")

    def serve(self):
        """Forks for each order. Returns in children alone, their request; or here, where there are threads."""
        if self.has_threads:
            self.ready.renew()
        if self.own is not None:
            own, self.own = self.own, None
            self.tell(own, "it is done with it")
        while True:
            while self.orders:
                request = self.obey(self.orders.popleft())
                if request is not None:
                    return request
            reports = [self.ready.ahead.found] if self.ready.ahead else []
            ends = [] if self.has_threads else [self.woken]
            heard, _, _ = select.select([self.control, *ends, *reports], [], [])
            if heard[-1:] == reports:
                self.ready.ahead.hear()
                self.connected()
            if self.woken in heard:
                os.read(self.woken, 4096)
                self.reap()
            if self.control in heard:
                self.hear()

    def hear(self):
        more = self.control.recv(65536)
        if not more:
            os._exit(0)
        *lines, self.buffer = (self.buffer + more).split(b"\n")
        self.orders.extend(lines)

    def obey(self, line):
        [(order, what)] = json.loads(line).items()
        if order == "fork":
            request, wanted = what
            if self.has_threads:
                self.own = request
                return request
            if self.fork(request, wanted):
                return request
        elif order == "kill" and what in self.pids:
            os.kill(self.pids[what], signal.SIGKILL)
        return None

    def fork(self, request, wanted=()):
        """Forks for a request that wants connections to some destinations; whether this is the child."""
        # The node may know of an end before this process does, and have the session ready again.
        self.reap()
        ahead = self.ready.ahead
        session = ahead.choose(wanted) if ahead else None
        strays.flush()
        try:
            pid = os.fork()
        except OSError as error:
            self.tell(request, f"cannot fork: {error}")
            return False
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            strays.keep()
            for descriptor in (self.woken, self.wake, self.control.detach()):
                os.close(descriptor)
            self.ready.child(session)
            return True
        self.pids[request] = pid
        self.requests[pid] = request
        if ahead:
            ahead.assign(session, pid)
            self.connected()
        return False

    def reap(self):
        """Tells of children that have ended, once what they left has ended too."""
        ended = []
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            ended.append((pid, status))
        if not ended:
            return
        strays.end(self.requests.keys() - {pid for pid, _ in ended})
        for pid, status in ended:
            request = self.requests.pop(pid, None)
            if request is None:
                continue
            del self.pids[request]
            if self.ready.ahead:
                self.ready.ahead.ended(pid)
            code = os.waitstatus_to_exitcode(status)
            self.tell(request, f"exit code {code}" if code >= 0 else f"signal {-code}")

    def connected(self):
        """Tells which destinations it is connected to, if they are others than before."""
        connections = self.ready.ahead.connected() if self.ready.ahead else None
        if connections is not None:
            self.send({"connected": connections})

    def tell(self, request, why):
        self.send({"ended": [request, why]})

    def lose(self, request, error):
        """Tells of a request that could not be taken, or not answered, by this process, which goes on."""
        elver_context.say(f"request {request} is lost", error)
        if not isinstance(error, Gone):
            self.send({"lost": [request, f"its process lost it: {error}"]})

    def send(self, report):
        self.control.sendall(json.dumps(report).encode() + b"\n")


def load():
    """The handler that the environment names."""
    module, function = os.environ["_HANDLER"].replace("/", ".").rsplit(".", 1)
    __import__(module)
    return getattr(sys.modules[module], function)


def take(api, request):
    """The invocation that this process is there for: its headers, and the event."""
    answer, event = api.ask("GET", "invocation/next", headers={"Elver-Request": str(request)})
    if answer.status != 200:
        raise Gone(f"no invocation: {answer.status} {event.decode(errors='replace')}")
    return answer.headers, event


def run_one(handler, request):
    """Takes a request and answers it."""
    api = Connection(os.environ["ELVER_API_SOCKET"])
    headers, event = take(api, request)
    context = Context(headers)
    base = f"invocation/{context.aws_request_id}/"
    end, own = "response", os.getpid()
    try:
        result = json.dumps(handler(json.loads(event or b"null"), context), default=plain).encode()
        if len(result) > ANSWER_MAX:
            raise ValueError(f"an answer has at most {ANSWER_MAX} bytes; this one has {len(result)}")
    except BaseException as error:
        end, result = "error", failure(error)
    if os.getpid() != own:
        # The handler forked, and both came back: one of them has the request, and the orders that come.
        os._exit(1)
    api.ask("POST", base + end, result, {"Content-Type": "application/json"})


def run_python(init, first):
    try:
        handler = load()
    except BaseException as error:
        Connection(os.environ["ELVER_API_SOCKET"]).ask("POST", "init/error", failure(error))
        traceback.print_exc()
        strays.flush()
        os._exit(1)
    init.connected()
    run_one(handler, first)
    init.has_threads = look_for_threads()
    init.begin()
    while True:
        request = init.serve()
        try:
            run_one(handler, request)
        except (Gone, OSError, http.client.HTTPException) as error:
            if not init.has_threads:
                raise
            # Another orchestrator may come, which has others.
            init.lose(request, error)
        strays.flush()
        if not init.has_threads:
            break


def run_awslambdaric(init, first):
    """Lambda's own client, unmodified, which asks to be restored after it has imported the handler."""
    from awslambdaric import lambda_runtime_client
    from awslambdaric.__main__ import main as run

    def restore_next(_client):
        if init.ready.ahead:
            init.ready.ahead.settle()
        init.has_threads = look_for_threads()
        if init.has_threads:
            init.own = first
        is_child = not init.has_threads and init.fork(first)
        if not is_child:
            init.begin()
        requests = [first if is_child or init.has_threads else init.serve()]

        own, current = os.getpid(), None

        def end_others():
            # The handler forked, and both came back: one of them has the request, and the orders that come.
            if os.getpid() != own:
                os._exit(1)

        def next_invocation():
            nonlocal current
            end_others()
            while True:
                # It asks for any; one that is not this child's own would be ended with the wrong process.
                if not requests and not init.has_threads:
                    strays.flush()
                    os._exit(0)
                current = requests.pop() if requests else init.serve()
                try:
                    headers, event = take(Connection(os.environ["ELVER_API_SOCKET"]), current)
                    return event, headers
                except (Gone, OSError, http.client.HTTPException) as error:
                    if not init.has_threads:
                        raise
                    init.lose(current, error)

        def or_lost(post):
            def posts(*args):
                end_others()
                try:
                    return post(*args)
                except RuntimeError as error:
                    if not init.has_threads:
                        raise
                    # Another orchestrator may come, which has others.
                    init.lose(current, error)

            return posts

        client = lambda_runtime_client.runtime_client
        client.next = next_invocation
        client.post_invocation_result = or_lost(client.post_invocation_result)
        client.post_error = or_lost(client.post_error)

    lambda_runtime_client.LambdaRuntimeClient.restore_next = restore_next
    run(["awslambdaric", os.environ["_HANDLER"]])


def main():
    control = socket.socket(fileno=os.dup(0))
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    sys.path.insert(0, os.environ["LAMBDA_TASK_ROOT"])
    # What a handler asks of the environment is not ours to add to.
    first = int(os.environ.pop("ELVER_FIRST"))
    sessions, sessions_max = map(int, os.environ.pop("ELVER_SESSIONS").split())
    unassigned = int(os.environ.pop("ELVER_UNASSIGNED"))
    leased = elver_context.is_leased(os.environ.pop("ELVER_CONNECTIONS"))
    elver_context.READY.start(os.environ["ELVER_DESTINATIONS"].split(), unassigned, sessions, sessions_max, leased)
    strays.keep()
    init = Init(control)
    code = 1
    try:
        if os.environ.pop("ELVER_RUNTIME") == "awslambdaric":
            run_awslambdaric(init, first)
        else:
            run_python(init, first)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
        elver_context.say("it ends", ended)
    except BaseException:
        traceback.print_exc()
    finally:
        strays.flush()
        # Threads that the handler left do not keep the process.
        os._exit(code)


main()
