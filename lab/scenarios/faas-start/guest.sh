# shellcheck shell=bash
# A container's runtime changes its root by pivot_root, which a kernel's first root file system does not allow: so all is done
# in another one, of memory.
step 'a root file system of memory'
mkdir /new
mount -t tmpfs -o size=900m new /new || fail 'no tmpfs'
tar -C / -cf - bin etc lab lib lib64 sbin usr | tar -C /new -xf - || fail 'the programs cannot be copied'
tar -C /new -xf /job/bin/functions.tar || fail 'what functions need cannot be unpacked'
mkdir -p /new/dev /new/job /new/opt/elver /new/proc /new/root /new/run /new/sys /new/tmp
for library in /job/lib/*; do
    [ -e "/new/usr/lib/x86_64-linux-gnu/${library##*/}" ] || cp "$library" /new/usr/lib/x86_64-linux-gnu/
done
# The programs themselves, not their loaders' scripts: some are run in containers.
for program in elver elverd elver-init libelver_python.so; do
    cp "/job/programs/$program" /new/opt/elver/ || fail "no $program"
done
for mounted in dev job proc sys tmp; do
    mount --rbind "/$mounted" "/new/$mounted" || fail "/$mounted cannot be mounted there"
done
mount -t cgroup2 cgroup /new/sys/fs/cgroup || fail 'no cgroups'
cd /new || fail 'no /new'
mount --move . / || fail 'it cannot become the root'
exec chroot . /bin/bash /job/inside.sh
