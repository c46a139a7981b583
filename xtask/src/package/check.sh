# Installs a package over a copy of this system that ends with this shell, and uses it.
# $1 is the package, $2 the tar file.
mount --make-rprivate /
ip link set lo up
top=$(mktemp -d)
mount -t tmpfs plexus-check "$top"
mkdir "$top/upper" "$top/work" "$top/root"
mount -t overlay -o "lowerdir=/,upperdir=$top/upper,workdir=$top/work" plexus-check "$top/root"
mount -t proc proc "$top/root/proc"
mount --rbind /dev "$top/root/dev"
mount -t tmpfs plexus-check "$top/root/tmp"
cp "$1" "$top/root/tmp/plexus.deb"
cp "$2" "$top/root/tmp/plexus.tar.gz"
cat > "$top/root/tmp/steps" <<'STEPS'
say() { echo "== $*"; }
say "dpkg installs the package"
dpkg --install plexus.deb
dpkg --verify plexus
say "plexus --version"
plexus --version
say "a cluster of three nodes"
plexus init c1 --nodes 3 --size-mib 16 --cache-mib 8
export PLEXUS_DIR=/tmp/c1
plexus up
plexus status | head -n 4
say "a C program, linked as pkg-config says"
cat > program.c <<'PROGRAM'
#include <plexus.h>
#include <stdio.h>
int main(void) {
    plexus_client *client = NULL;
    int error = plexus_attach("/tmp/c1", &client);
    printf("attach: %d\n", error);
    if (error) return 1;
    plexus_detach(client);
    return 0;
}
PROGRAM
cc program.c $(pkg-config --cflags --libs plexus) -o program
readelf --dynamic program | grep -F '[libplexus.so.0.1]'
ldconfig -p | grep -F 'libplexus.so.0.1 '
./program
plexus down
say "systemd accepts the units"
plexus systemd install --dir /tmp/units
if command -v systemd-analyze > /dev/null; then
    SYSTEMD_UNIT_PATH=/tmp/units: systemd-analyze --man=no verify plexus-c1@n1.service plexus-c1.target
fi
say "manual pages"
man -l /usr/share/man/man1/plexus-up.1.gz | head -n 5
man -w plexus-node-stop
say "completions"
bash -c 'source /usr/share/bash-completion/completions/plexus && complete -p plexus'
say "dpkg removes the package"
dpkg --purge plexus
test ! -e /usr/bin/plexus
say "the tar file works from any directory"
mkdir anywhere
tar --extract --gzip --file plexus.tar.gz --directory anywhere --strip-components 1
anywhere/bin/plexus --version
export PKG_CONFIG_PATH=/tmp/anywhere/lib/pkgconfig
cc program.c $(pkg-config --cflags --libs plexus) -Wl,-rpath,/tmp/anywhere/lib -o program
ldd program | grep /tmp/anywhere/lib/libplexus.so.0.1
STEPS
cd "$top/root/tmp"
chroot "$top/root" sh -euc 'cd /tmp && exec sh -eu ./steps'
echo "the package works"
