//! Names of the system calls of x86-64 that setting connections up takes; others have their numbers.

const NAMES: [(u64, &str); 44] = [
    (0, "read"),
    (1, "write"),
    (2, "open"),
    (3, "close"),
    (5, "fstat"),
    (7, "poll"),
    (8, "lseek"),
    (9, "mmap"),
    (10, "mprotect"),
    (11, "munmap"),
    (12, "brk"),
    (13, "rt_sigaction"),
    (14, "rt_sigprocmask"),
    (16, "ioctl"),
    (17, "pread64"),
    (21, "access"),
    (24, "sched_yield"),
    (28, "madvise"),
    (39, "getpid"),
    (41, "socket"),
    (44, "sendto"),
    (45, "recvfrom"),
    (46, "sendmsg"),
    (47, "recvmsg"),
    (49, "bind"),
    (51, "getsockname"),
    (54, "setsockopt"),
    (63, "uname"),
    (72, "fcntl"),
    (89, "readlink"),
    (97, "getrlimit"),
    (102, "getuid"),
    (107, "geteuid"),
    (110, "getppid"),
    (201, "time"),
    (202, "futex"),
    (204, "sched_getaffinity"),
    (217, "getdents64"),
    (228, "clock_gettime"),
    (257, "openat"),
    (262, "newfstatat"),
    (302, "prlimit64"),
    (318, "getrandom"),
    (332, "statx"),
];

pub(super) fn name(number: u64) -> String {
    let known = NAMES.iter().find(|(its, _)| *its == number);
    known.map_or_else(|| format!("system call {number}"), |(_, name)| name.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_the_kernels() {
        let pairs = [
            (libc::SYS_openat, "openat"),
            (libc::SYS_recvmsg, "recvmsg"),
            (libc::SYS_getppid, "getppid"),
        ];
        for (number, expected) in pairs {
            assert_eq!(name(number as u64), expected);
        }
        assert_eq!(name(9_999), "system call 9999");
    }
}
