#!/bin/sh
# Usage: install-judges.sh VENV tshark|browser. A judge of the tests that is no Python package: tshark, a decoder of the
# protocol, or the headless Chromium that tests of pages drive. One that the system has is used. Else the packages of
# Debian or Ubuntu are unpacked into VENV/tshark or VENV/browser, with a start script in VENV/bin. Nothing is installed
# into the system, so no rights are needed. Where that is not possible, the tests that need it are skipped and say so.
set -u
venv=${1:?the virtual environment}
judge=${2:?tshark or browser}
case $judge in
tshark) program=tshark package=tshark file=usr/bin/tshark about='tshark, an independent decoder' others='' ;;
browser)
    program=chromium-headless-shell package=$program file=usr/lib/chromium/$program
    about='a headless Chromium, up to 160 MB to fetch'
    # The names that tests/kit/browser.py looks for.
    others='chromium chromium-browser google-chrome google-chrome-stable chrome-headless-shell'
    ;;
*) echo "there is no judge $judge" >&2 && exit 2 ;;
esac
for name in $program $others; do
    command -v "$name" >/dev/null 2>&1 && exit 0
done
[ -x "$venv/bin/$program" ] && exit 0
give_up() {
    echo "$program is not there and $1: its tests will be skipped (Debian: apt-get install $package)"
    exit 0
}
command -v apt-get >/dev/null 2>&1 && command -v dpkg >/dev/null 2>&1 || give_up 'there is no apt-get to fetch it with'
mkdir -p "$venv/bin" && venv=$(cd "$venv" && pwd) || give_up "$venv cannot be written"

place=$venv/$judge
work=$place.new
printf '\033[1m== %s (into %s)\033[0m\n' "$about" "$place"
rm -rf "$place" "$work"
mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/root"
# The lists and the packages lie in the project; the system's list of what is installed is only read.
in_project() {
    apt-get -qq -o Dir::State::lists="$work/lists" -o Dir::Cache="$work/cache" -o Debug::NoLocking=1 \
        -o APT::Sandbox::User="$(id -un)" "$@" >"$work/log" 2>&1
}
in_project update || give_up 'its packages cannot be listed'
in_project install --download-only --yes --no-install-recommends "$package" || give_up 'its packages cannot be fetched'
for archive in "$work"/cache/archives/*.deb; do
    case ${archive##*/} in
    # Chromium's way to a graphics card, which it does without.
    libllvm* | libgl1-mesa-dri_* | libz3-*) continue ;;
    esac
    dpkg -x "$archive" "$work/root" || give_up "$archive cannot be unpacked"
done
rm -rf "$work/lists" "$work/cache" "$work/log"
mv "$work" "$place"
libraries=$(find "$place/root" -name 'lib*.so*' -exec dirname {} + | sort -u | tr '\n' ':')
start() {
    cat <<END
#!/bin/sh
LD_LIBRARY_PATH="${libraries%:}\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}" \\
    $1 exec "$place/root/$file" "\$@"
END
}
if [ "$judge" = tshark ]; then
    start "WIRESHARK_DATA_DIR=\"$place/root/usr/share/wireshark\"" >"$venv/bin/$program"
else
    # Texts need fonts: those of the system, and those that were unpacked.
    cat >"$place/fonts.conf" <<END
<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <dir>/usr/share/fonts</dir>
  <dir>$place/root/usr/share/fonts</dir>
  <cachedir>$place/font-cache</cachedir>
</fontconfig>
END
    start "FONTCONFIG_FILE=\"$place/fonts.conf\"" >"$venv/bin/$program"
fi
chmod +x "$venv/bin/$program"
"$venv/bin/$program" --version >/dev/null 2>&1 && exit 0
rm -rf "$place" "$venv/bin/$program"
give_up 'what was fetched does not run'
