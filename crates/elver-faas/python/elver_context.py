"""What a handler has of RDMA: `device`, `pd`, `qps` by destination and `mr` (Swift, sections 4.1.2 and 4.1.3).

An INIT process makes connections for its own first request, and sessions for its children, while the handler
is imported: it begins both and waits for neither. A child takes its session over when its handler first asks.
A process that inherits none opens a session of its own.
"""

import os
import select
import socket
import sys
import time

from _elver_assignments import Assignments

NODE = os.environ["ELVER_SOCKET"]

# Bytes of the memory region that each request has. A larger one is `pd.alloc(bytes)`.
MR_BYTES = 32 << 10

# How long until what the node refused, or a node that was away, is asked again, in seconds.
AGAIN_S = 1

# How long an INIT process waits for its sessions before it takes orders, in seconds.
SETTLE_S = 0.002

# A spell in which children begin without a connection is over when none has for so long, in seconds.
SPELL_S = 60

# What is before an IPv4 address in a GID.
MAPPED = bytes(10) + b"\xff\xff"

# The longest report of a child's, in bytes, which is written as one.
REPORT_MAX = 128

# Why a connection of a leased function may lack, beside a node that does not answer: who has no room, and what counts it.
NO_ROOM = (
    "there was no room for a leased queue pair, at this node (transfer.leased_wrs_max; `elver status` counts "
    "leases_refused), for this account (its share of that, or quota.leased_wrs; leases_refused_user) or at the peer for "
    "this node (the peer's transfer.leased_wrs_max; leases_refused_peer), or the node could not connect them"
)


def module():
    """The module `elver`, if the platform has one."""
    try:
        import elver
    except ImportError:
        return None
    return elver


def is_leased(connections):
    """Whether each connection is to have a queue pair of its own."""
    if connections not in ("shared", "leased"):
        raise ValueError(f"ELVER_CONNECTIONS is {connections!r}; it is shared or leased")
    return connections == "leased"


def say(what, error):
    try:
        print(f"elver: {what}: {error}", file=sys.stderr, flush=True)
    except Exception:
        # Closed, or replaced by a handler with something else.
        pass


def gid(text):
    """A GID in one of the spellings that it has."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            number = socket.inet_pton(family, text)
        except (OSError, TypeError, ValueError):
            continue
        if number[:12] == MAPPED:
            family, number = socket.AF_INET, number[12:]
        return socket.inet_ntop(family, number)
    raise ValueError(f"{text!r} is no GID, which is written as the IP address of its node: 10.0.0.1, fe80::1")


def key(destination):
    """What a dictionary by GIDs has it by: what is no GID is itself, under which there is nothing."""
    try:
        return gid(destination)
    except ValueError:
        return destination


class Connections(dict):
    """Connections by destination, a GID in whichever spelling. One that nobody made ahead is made when it is asked for: by
    a QP that has no destination yet, and then the INIT process is told."""

    def __init__(self, session, begun, leased, unassigned=(), tell=None):
        super().__init__()
        self.leased = leased
        self.session = session
        self.begun = begun
        self.unassigned = list(unassigned)
        self.tell = tell

    def __getitem__(self, destination):
        return super().__getitem__(gid(destination))

    def __setitem__(self, destination, connection):
        super().__setitem__(gid(destination), connection)

    def __delitem__(self, destination):
        super().__delitem__(key(destination))

    def __contains__(self, destination):
        return super().__contains__(key(destination))

    def __ior__(self, others):
        self.update(others)
        return self

    def get(self, destination, default=None):
        return super().get(key(destination), default)

    def pop(self, destination, *default):
        return super().pop(key(destination), *default)

    def setdefault(self, destination, connection=None):
        return super().setdefault(gid(destination), connection)

    def update(self, *others, **named):
        for destination, connection in dict(*others, **named).items():
            self[destination] = connection

    def __missing__(self, destination):
        self[destination] = connection = self.connect(destination)
        return connection

    def connect(self, destination):
        begun = self.begun.pop(destination, None)
        if begun:
            return begun.wait()
        entry = self.choose(destination)
        if entry is None:
            return self.session.connect(destination, leased=self.leased)
        number, to, connection = entry
        try:
            connection.connect(destination, leased=self.leased)
        except Exception:
            if to:
                self.tell(number, None)
            raise
        self.unassigned.remove(entry)
        self.tell(number, destination)
        return connection

    def choose(self, destination):
        """A QP that should go there, or else one that may go anywhere."""
        for wanted in (destination, None):
            for entry in self.unassigned:
                if entry[1] == wanted:
                    return entry
        return None


class Rdma:
    """One process's. Device and protection domain are one thing here, the session at the node."""

    def __init__(self, session, qps, mr, inherited):
        self.device = self.pd = session
        self.qps = qps
        self.mr = mr
        self.inherited = inherited

    @classmethod
    def own(cls, session, begun, leased):
        return cls(session, Connections(session, begun, leased), session.alloc(MR_BYTES, ""), False)

    @classmethod
    def open(cls, leased):
        elver = module()
        if elver is None or not os.path.exists(NODE):
            raise RuntimeError(
                "the platform gives no RDMA: its configuration needs platform.node_socket, and the module elver "
                "beside its program or at platform.module"
            )
        return cls.own(elver.Session(NODE), {}, leased)

    @classmethod
    def inherit(cls, ahead, first):
        table = ahead.table
        heirs, number, _ = table.qps[first]
        heir = heirs.take(number)
        qps, unassigned = {}, []
        for qp, connection in enumerate(heir.vqps + heir.unassigned, first):
            destination = table.destination[qp]
            is_there = connection.is_connected and connection.failure is None
            if destination and is_there:
                qps[destination] = connection
            elif not is_there:
                # One with a destination was made before the node was told, or its node was away, or had no room: it is
                # connected when it is asked for, or says then why not.
                unassigned.append((qp, destination, connection))
        connections = Connections(heir.session, {}, ahead.leased, unassigned, ahead.tell)
        connections.update(qps)
        return cls(heir.session, connections, heir.memory, True)


class Ahead:
    """What an INIT process makes ready, and which child has what of it."""

    def __init__(self, elver, destinations, unassigned, sessions, sessions_max, leased):
        self.elver = elver
        self.destinations = destinations
        self.sessions = min(sessions, sessions_max)
        self.sessions_max = sessions_max
        self.leased = leased
        self.again = 0
        # When a child last began without a connection of the function's.
        self.lacked = None
        self.table = Assignments(destinations, unassigned)
        # Where children report. Nobody waits for it to have room, or something in it.
        self.found, self.finds = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        # Of which node the table is: what children of before report means nothing now.
        self.epoch = 0
        self.begin()

    def begin(self):
        """Opens a session, and begins all that it makes ready."""
        session = self.elver.Session(NODE)
        begun = {to: session.connect_start(to, leased=self.leased) for to in self.destinations}
        # All of it or none: with a session that is open, nothing would be begun again.
        self.session, self.begun = session, begun
        self.epoch += 1
        self.table.clear()
        self.sets = 0
        self.preparing = None
        self.told = set()
        self.grow()

    def look_after(self):
        """Begins anew if the node has ended, and another one is there."""
        if self.session.is_open or time.monotonic() < self.again:
            return
        self.again = time.monotonic() + AGAIN_S
        # What is of the node that has ended is nobody's.
        self.table.clear()
        self.sets = 0
        self.preparing = None
        try:
            self.begin()
        except Exception as error:
            say("nothing is made ready", error)

    def grow(self):
        """Prepares more sessions while fewer than half of a set are free, or of its QPs without a destination."""
        if self.preparing or (self.sets + 1) * self.sessions > self.sessions_max or not self.sessions:
            return
        few_sessions = len(list(self.table.free())) * 2 < self.sessions
        few_qps = self.table.count_unassigned() * 2 < self.sessions * self.table.unassigned
        if self.sets and not few_sessions and not few_qps:
            return
        if time.monotonic() < self.again:
            return
        try:
            self.preparing = self.session.prepare_start(
                self.sessions,
                self.destinations,
                MR_BYTES,
                must_connect=False,
                unassigned=self.table.unassigned,
                leased=self.leased,
            )
        except Exception as error:
            self.later(error)

    def later(self, error):
        self.again = time.monotonic() + AGAIN_S
        say("no more sessions are prepared for children now", error)

    def settle(self):
        """Waits a moment for what is prepared. It is longer under way only if a destination does not answer."""
        until = time.monotonic() + SETTLE_S
        while self.preparing and not self.preparing.is_done and time.monotonic() < until:
            os.sched_yield()
        self.gather()

    def gather(self):
        """Takes what was prepared, if it is there."""
        if self.preparing is None or not self.preparing.is_done:
            return
        preparing, self.preparing = self.preparing, None
        try:
            self.table.add(preparing.wait())
            self.sets += 1
        except Exception as error:
            self.later(error)

    def choose(self, wanted=()):
        """The first QP of the session for a child that is about to be forked, to be connected to what is wanted if there
        is such a one; none if all are in use."""
        self.look_after()
        self.gather()
        self.hear()
        first = self.table.choose({gid(to) for to in wanted})
        if first is not None:
            self.say_lacking(first)
        return first

    def say_lacking(self, first):
        """Says that a child begins without connections of the function's: once, until none has for a while."""
        heirs, number, _ = self.table.qps[first]
        lacking = [to for at, to in enumerate(self.destinations) if not heirs.is_connected(number, at)]
        if not lacking:
            return
        now, last = time.monotonic(), self.lacked
        self.lacked = now
        if last is None or now - last > SPELL_S:
            why = NO_ROOM if self.leased else "the node could not connect them"
            say(f"children begin without a connection to {', '.join(lacking)}", why)

    def assign(self, first, pid):
        if first is not None:
            self.table.assign(first, pid)
        self.grow()

    def ended(self, pid):
        """A child has ended. The node has its session ready again a moment later."""
        self.hear()
        self.table.ended(pid)

    def tell(self, qp, destination):
        """A child's: where it has connected a QP, or that one is not."""
        report = f"{self.epoch} {qp} {destination or '-'}\n".encode()
        try:
            if len(report) <= REPORT_MAX:
                os.write(self.finds, report)
        except OSError:
            # The next one connects it again.
            pass

    def hear(self):
        """What children have reported: what a pipe holds, since one may write without end."""
        if select.select([self.found], [], [], 0)[0]:
            for line in os.read(self.found, 1 << 16).splitlines():
                try:
                    epoch, qp, destination = line.decode().split(" ")
                    if int(epoch) == self.epoch:
                        self.table.connected(int(qp), None if destination == "-" else gid(destination))
                except (ValueError, TimeoutError, self.elver.Error) as error:
                    say("a child's report", error)

    def connected(self):
        """Destinations that it is connected to, if they are others than were told."""
        now = {to for to in self.destinations if self.begun[to].is_connected} | self.table.reached()
        if now == self.told:
            return None
        self.told = now
        return sorted(now)


class Ready:
    """What this process has: its own or an inherited session, once it is asked for."""

    def __init__(self):
        self.ahead = None
        self.leased = False
        self.session = None
        self.is_child = False
        self.rdma = None

    def start(self, destinations, unassigned, sessions, sessions_max, leased):
        """Begins to make things ready, in an INIT process of a function with destinations, or with QPs for some."""
        self.leased = leased
        # Each once.
        destinations = list(dict.fromkeys(map(gid, destinations)))
        elver = module() if (destinations or unassigned) and os.path.exists(NODE) else None
        if elver is None:
            return
        try:
            self.ahead = Ahead(elver, destinations, unassigned, sessions, sessions_max, leased)
        except Exception as error:
            say("nothing is made ready", error)

    def child(self, session):
        """This is a child now, and gets that session."""
        self.session = session
        self.is_child = True
        self.rdma = None
        if self.ahead:
            os.close(self.ahead.found)
            # What the handler writes, wherever that is, harms nobody.
            self.ahead.session.leave_to_parent()

    def renew(self):
        """Before this process has its next request: what it has of a node that has ended is had anew."""
        if self.ahead:
            self.ahead.look_after()
        if self.rdma and not self.rdma.device.is_open:
            self.rdma = None

    def get(self):
        if self.rdma is None:
            self.rdma = self.open()
        return self.rdma

    def open(self):
        if self.ahead is None or (self.is_child and self.session is None):
            return Rdma.open(self.leased)
        try:
            if not self.is_child:
                return Rdma.own(self.ahead.session, dict(self.ahead.begun), self.leased)
            return Rdma.inherit(self.ahead, self.session)
        except (TimeoutError, self.ahead.elver.Error) as error:
            # As when the node has started again since.
            say("what was made ready cannot be had", error)
            return Rdma.open(self.leased)


READY = Ready()


def current():
    """What this process has."""
    return READY.get()
