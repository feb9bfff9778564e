"""Two ranks of MPI: messages of three sizes both ways, one-sided writes, a sum; all of it compared."""

import array

from mpi4py import MPI

COUNT = 1 << 20
world = MPI.COMM_WORLD
rank, other = world.rank, 1 - world.rank
assert world.size == 2, world.size


def numbers(of):
    return array.array("q", range(of, of + COUNT))


own, got = numbers(rank), array.array("q", bytes(8 * COUNT))
for count in (1, 1000, COUNT):
    sent, room = memoryview(own)[:count], memoryview(got)[:count]
    world.Sendrecv([sent, MPI.INT64_T], other, 0, [room, MPI.INT64_T], other)
    assert room == memoryview(numbers(other))[:count], f"{count} numbers"
window = MPI.Win.Create(got, 8, comm=world)
got[0] = -1
window.Fence()
window.Put([own, MPI.INT64_T], other)
window.Fence()
assert got == numbers(other), "what was put is not what arrived"
window.Free()
assert world.allreduce(rank + 1) == 3
print("same", flush=True)
