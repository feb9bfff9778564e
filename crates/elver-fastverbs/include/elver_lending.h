/* Queue pairs of the host's own libibverbs for the children of a process (Swift, section 3.4): the parent makes and
 * connects them, a child takes one over after fork and posts to it, and when the child ends, at any instruction, the queue
 * pair comes back to the parent.
 *
 *     cc -o program program.c -lelver_fastverbs -libverbs
 *
 * In this order, or preloaded: the library stands before ibv_destroy_qp, ibv_modify_qp and ibv_close_device, so that what a
 * child has stays. Where it does not, elver_lend_qp says EOPNOTSUPP.
 *
 * Children share the queues with the kernel, and with the parent, whose memory a stray write into them may spoil: who does
 * not trust its children with that lends them nothing.
 *
 * docs/fork.md says which devices can share their queue pairs, and what of it a child may use. Calls return 0, or one of
 * errno's numbers; elver_lending_error() has the reason in words. */
#ifndef ELVER_LENDING_H
#define ELVER_LENDING_H

#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ibv_qp;

/* At most this many queue pairs of a process are lent at a time, and those of 16 devices that are open. */
#define ELVER_LENT_MAX 1024

enum elver_lent_state {
    ELVER_LENT_NOT = 0,       /* the queue pair is its process's own */
    ELVER_LENT_FREE = 1,      /* a child may take it */
    ELVER_LENT_TAKEN = 2,     /* a child has it */
    ELVER_LENT_RETURNING = 3, /* its child has ended, and it is being drained */
    ELVER_LENT_RESET = 4,     /* drained, and in the state RESET: to be connected anew, and elver_lent_ready */
    ELVER_LENT_BROKEN = 5     /* it could not be drained: to be destroyed */
};

/* The peer's queue pair does not allow IBV_ACCESS_REMOTE_WRITE. */
#define ELVER_LEND_NO_WRITE 1U

/* In the parent: lends a queue pair to children that it will fork. The queue pair is RC, in the state RTS, with completion
 * queues that no other queue pair uses and without a shared receive queue. Nothing is posted to it, receives neither, and
 * nothing is left in its completion queues. From here on the parent posts nothing to it (EPERM), nor polls these.
 * EOPNOTSUPP if the device's queue pairs cannot be shared.
 *
 * When a child has ended that left nothing, an RDMA WRITE of no bytes is sent behind what it posted, and the queue pair is
 * ELVER_LENT_FREE once that has completed. A peer that does not allow it goes to the state ERR by it: then the flags are
 * ELVER_LEND_NO_WRITE, and the queue pair comes back by ELVER_LENT_RESET from each child, its peer as it was. Else 0. */
int elver_lend_qp(struct ibv_qp *qp, unsigned flags);

/* In a child: takes a queue pair over; it is the child's until that ends. EBUSY if another child has it, EAGAIN if one
 * has just ended, ENOTCONN if it waits to be connected anew, EINVAL if it is not lent, or not any more, EPERM in another
 * process than a child of the lender's, EBADF if the child has closed what it inherited. The child does not modify it
 * (EPERM), and destroys nothing of its parent's. Its posts say ENODEV when the parent has ended or executes another
 * program. */
int elver_take_qp(struct ibv_qp *qp);

/* How a queue pair is, who has it (0: nobody), and how often children have given it back since it was lent; both may be
 * null. */
enum elver_lent_state elver_lent_state(const struct ibv_qp *qp, pid_t *child, uint32_t *returned);

/* In the parent: a queue pair that came back in RESET is connected again, and in RTS. */
int elver_lent_ready(struct ibv_qp *qp);

/* In the parent: the queue pair is its own again. EBUSY while a child has it, or what that left is drained. ibv_destroy_qp
 * does that too, and ibv_close_device for all of a device's, which returns -1 with errno EBUSY while a child has one. */
int elver_take_back_qp(struct ibv_qp *qp);

/* Why the last call of this thread was refused. */
const char *elver_lending_error(void);

#ifdef __cplusplus
}
#endif

#endif
