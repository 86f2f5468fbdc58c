#!/bin/sh
# Usage: install-judges.sh VENV. The judges of the tests that are no Python packages: tshark, a decoder of the protocol.
# One that the system has is used. Else the packages of Debian or Ubuntu are unpacked into VENV/tshark, with a start
# script in VENV/bin. Nothing is installed into the system, so no rights are needed. Where that is not possible, the
# tests of tshark are skipped and say so.
set -u
venv=${1:?the virtual environment}
command -v tshark >/dev/null 2>&1 && exit 0
[ -x "$venv/bin/tshark" ] && exit 0
give_up() {
    echo "tshark is not there and $1: its tests will be skipped (Debian: apt-get install tshark)"
    exit 0
}
command -v apt-get >/dev/null 2>&1 && command -v dpkg >/dev/null 2>&1 || give_up 'there is no apt-get to fetch it with'
mkdir -p "$venv/bin" && venv=$(cd "$venv" && pwd) || give_up "$venv cannot be written"

printf '\033[1m== tshark, an independent decoder (into %s)\033[0m\n' "$venv/tshark"
place=$venv/tshark
work=$place.new
rm -rf "$place" "$work"
mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/root"
# The lists and the packages lie in the project; the system's list of what is installed is only read.
in_project() {
    apt-get -qq -o Dir::State::lists="$work/lists" -o Dir::Cache="$work/cache" -o Debug::NoLocking=1 \
        -o APT::Sandbox::User="$(id -un)" "$@" >"$work/log" 2>&1
}
in_project update || give_up 'its packages cannot be listed'
in_project install --download-only --yes --no-install-recommends tshark || give_up 'its packages cannot be fetched'
for package in "$work"/cache/archives/*.deb; do
    dpkg -x "$package" "$work/root" || give_up "$package cannot be unpacked"
done
rm -rf "$work/lists" "$work/cache" "$work/log"
mv "$work" "$place"
libraries=$(find "$place/root" -name 'lib*.so*' -exec dirname {} + | sort -u | tr '\n' ':')
cat >"$venv/bin/tshark" <<END
#!/bin/sh
LD_LIBRARY_PATH="${libraries%:}\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}" \\
    WIRESHARK_DATA_DIR="$place/root/usr/share/wireshark" exec "$place/root/usr/bin/tshark" "\$@"
END
chmod +x "$venv/bin/tshark"
"$venv/bin/tshark" --version >/dev/null 2>&1 && exit 0
rm -rf "$place" "$venv/bin/tshark"
give_up 'what was fetched does not run'
