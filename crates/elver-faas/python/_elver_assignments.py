"""Which child has which QP, and where each goes: the QP Table and the Assignment Table (Swift, section 4.1.3).

Both have an entry for each QP, which is its number. The INIT process alone changes them. QPs belong to sessions, and a
child has all of one session: those to the destinations of the function, and the others, which a child connects when it
wants to go elsewhere, and which stay connected there for the next ones.
"""


class Assignments:
    def __init__(self, destinations, unassigned):
        self.destinations = destinations
        self.unassigned = unassigned
        self.clear()

    def clear(self):
        # The QP Table: the set, the number of the session in it, and the QP's place among those without a destination
        # of the function's, or None.
        self.qps = []
        # The Assignment Table: the child that has the QP, and the destination if it is connected.
        self.child = []
        self.destination = []
        # Whether the child has told of it since it has it.
        self.told = []

    @property
    def each(self):
        return len(self.destinations) + self.unassigned

    def add(self, heirs):
        """A set of sessions is there."""
        for number in range(len(heirs)):
            places = [None] * len(self.destinations) + list(range(self.unassigned))
            self.qps += [(heirs, number, place) for place in places]
            self.child += [None] * self.each
            self.destination += self.destinations + [None] * self.unassigned
            self.told += [False] * self.each

    def sessions(self):
        """The first QP of each session."""
        return range(0, len(self.qps), self.each or 1)

    def free(self):
        """The first QP of each session that a child may have now."""
        for first in self.sessions():
            heirs, number, _ = self.qps[first]
            if self.child[first] is None and heirs.is_free(number):
                yield first

    def choose(self, wanted):
        """The first free session with QPs to all that is wanted, or else with unassigned ones for what it lacks, or else any;
        of those that are as good, one that lacks the fewest connections of the function's too."""
        best = None
        for first in self.free():
            rank = self.rank(first, wanted)
            if rank == (False, False, 0):
                return first
            if best is None or rank < best[0]:
                best = rank, first
        return best and best[1]

    def rank(self, first, wanted):
        """What a session has, the node says: it may have had no room to connect a QP, or no answer."""
        heirs, number, _ = self.qps[first]
        goes_to = self.destination[first : first + self.each]
        has = {to for at, to in enumerate(goes_to) if to is not None and heirs.is_connected(number, at)}
        missing = set(wanted) - has
        # One that lacks its connection is there to be connected.
        places = missing.difference(goes_to)
        lacking = missing.union(self.destinations) - has
        return bool(missing), goes_to.count(None) < len(places), len(lacking)

    def assign(self, first, pid):
        self.child[first : first + self.each] = [pid] * self.each
        self.told[first : first + self.each] = [False] * self.each

    def ended(self, pid):
        self.child = [None if child == pid else child for child in self.child]

    def connected(self, qp, destination):
        """A child has connected a QP of its own: so it stays. With None, it could not be.

        That may be where it should have been: the node tries a connection once, and not again until it is told to.
        """
        if not 0 <= qp < len(self.qps):
            return
        heirs, number, place = self.qps[qp]
        # Children tell of what they have, and may be wrong.
        if place is None or self.child[qp] is None or destination in self.destinations:
            # Each session has a QP for a destination of the function's.
            return
        if self.destination[qp] == destination and (self.told[qp] or destination is None):
            return
        heirs.assign(number, place, destination)
        self.told[qp] = True
        self.destination[qp] = destination

    def count_unassigned(self):
        return self.destination.count(None)

    def reached(self):
        """Destinations beyond the function's."""
        return set(self.destination).difference(self.destinations, [None])
