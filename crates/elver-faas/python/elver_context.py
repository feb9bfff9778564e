"""What a handler has of RDMA: `device`, `pd`, `qps` by destination and `mr` (Swift, sections 4.1.2 and 4.1.3).

An INIT process makes connections for its own first request, and sessions for its children, while the handler
is imported: it begins both and waits for neither. A child takes its session over when its handler first asks.
A process that inherits none opens a session of its own.
"""

import os
import sys
import time

NODE = os.environ["ELVER_SOCKET"]

# Bytes of the memory region that each request has. A larger one is `pd.alloc(bytes)`.
MR_BYTES = 32 << 10

# How long until what the node refused, or a node that was away, is asked again, in seconds.
AGAIN_S = 1

# How long an INIT process waits for its sessions before it takes orders, in seconds.
SETTLE_S = 0.002


def module():
    """The module `elver`, if the platform has one."""
    try:
        import elver
    except ImportError:
        return None
    return elver


def say(what, error):
    print(f"elver: {what}: {error}", file=sys.stderr, flush=True)


class Connections(dict):
    """Connections by destination. One that nobody made ahead is made when it is asked for."""

    def __init__(self, session, begun):
        super().__init__()
        self.session = session
        self.begun = begun

    def __missing__(self, destination):
        begun = self.begun.pop(destination, None)
        connection = begun.wait() if begun else self.session.connect(destination)
        self[destination] = connection
        return connection


class Rdma:
    """One process's. Device and protection domain are one thing here, the session at the node."""

    def __init__(self, session, qps, mr, inherited):
        self.device = self.pd = session
        self.qps = qps
        self.mr = mr
        self.inherited = inherited

    @classmethod
    def own(cls, session, begun):
        return cls(session, Connections(session, begun), session.alloc(MR_BYTES, ""), False)

    @classmethod
    def open(cls):
        elver = module()
        if elver is None or not os.path.exists(NODE):
            raise RuntimeError(
                "the platform gives no RDMA: its configuration needs platform.node_socket, and the module elver "
                "beside its program or at platform.module"
            )
        return cls.own(elver.Session(NODE), {})

    @classmethod
    def inherit(cls, heirs, number, destinations):
        heir = heirs.take(number)
        qps = Connections(heir.session, {})
        for destination, qp in zip(destinations, heir.vqps):
            # One whose node was away is connected anew, or says then why not.
            if qp.failure is None:
                qps[destination] = qp
        return cls(heir.session, qps, heir.memory, True)


class Ahead:
    """What an INIT process makes ready. It has the Assignment Table: which child has which session."""

    def __init__(self, elver, destinations, sessions, sessions_max):
        self.elver = elver
        self.destinations = destinations
        self.sessions = min(sessions, sessions_max)
        self.sessions_max = sessions_max
        self.again = 0
        self.begin()

    def begin(self):
        """Opens a session, and begins all that it makes ready."""
        self.session = self.elver.Session(NODE)
        self.begun = {gid: self.session.connect_start(gid) for gid in self.destinations}
        self.sets = []
        self.preparing = None
        self.assigned = {}
        self.told = 0
        self.grow()

    def look_after(self):
        """Begins anew if the node has ended, and another one is there."""
        if self.session.is_open or time.monotonic() < self.again:
            return
        self.again = time.monotonic() + AGAIN_S
        # What is of the node that has ended is nobody's.
        self.sets = []
        self.preparing = None
        try:
            self.begin()
        except Exception as error:
            say("nothing is made ready", error)

    def grow(self):
        """Prepares more sessions while fewer than half of a set are free."""
        have = sum(len(heirs) for heirs in self.sets)
        if self.preparing or have + self.sessions > self.sessions_max or not self.sessions:
            return
        if have and len(list(self.free())) * 2 >= self.sessions:
            return
        if time.monotonic() < self.again:
            return
        try:
            self.preparing = self.session.prepare_start(
                self.sessions, self.destinations, MR_BYTES, must_connect=False
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
            self.sets.append(preparing.wait())
        except Exception as error:
            self.later(error)

    def free(self):
        for index, heirs in enumerate(self.sets):
            for number in range(len(heirs)):
                if (index, number) not in self.assigned and heirs.is_free(number):
                    yield index, number

    def choose(self):
        """The first free session, for a child that is about to be forked; none if all are in use."""
        self.look_after()
        self.gather()
        return next(self.free(), None)

    def assign(self, session, pid):
        if session is not None:
            self.assigned[session] = pid
        self.grow()

    def ended(self, pid):
        """A child has ended. The node has its session ready again a moment later."""
        self.assigned = {session: child for session, child in self.assigned.items() if child != pid}

    def connected(self):
        """Destinations that it is connected to, if there are more of them than were told."""
        now = [gid for gid in self.destinations if self.begun[gid].is_connected]
        more = len(now) > self.told
        self.told = len(now)
        return now if more else None


class Ready:
    """What this process has: its own or an inherited session, once it is asked for."""

    def __init__(self):
        self.ahead = None
        self.session = None
        self.is_child = False
        self.rdma = None

    def start(self, destinations, sessions, sessions_max):
        """Begins to make things ready, in an INIT process of a function with destinations."""
        elver = module() if destinations and os.path.exists(NODE) else None
        if elver is None:
            return
        try:
            self.ahead = Ahead(elver, destinations, sessions, sessions_max)
        except Exception as error:
            say("nothing is made ready", error)

    def child(self, session):
        """This is a child now, and gets that session."""
        self.session = session
        self.is_child = True
        self.rdma = None

    def get(self):
        if self.rdma is None:
            self.rdma = self.open()
        return self.rdma

    def open(self):
        if self.ahead is None or (self.is_child and self.session is None):
            return Rdma.open()
        try:
            if not self.is_child:
                return Rdma.own(self.ahead.session, dict(self.ahead.begun))
            index, number = self.session
            return Rdma.inherit(self.ahead.sets[index], number, self.ahead.destinations)
        except self.ahead.elver.Error as error:
            # As when the node has started again since.
            say("what was made ready cannot be had", error)
            return Rdma.open()


READY = Ready()


def current():
    """What this process has."""
    return READY.get()
