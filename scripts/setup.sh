#!/usr/bin/env bash
# Makes .venv with exactly the versions of constraints.txt. Among them is a Java runtime, which is
# used where the machine has no Java 17 or later.
# Needs Python 3.11 or later and a package index; run again it brings .venv up to date.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.11 python3.12 python3.13}; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    fail "Python 3.11 or later is needed; set PYTHON to one"
}

# Debian ships Python without the part that puts pip into a virtual environment.
ensure_venv() {
    "$1" -c 'import ensurepip, venv' 2>/dev/null && return
    local package
    package="python$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv"
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null ||
        fail "this Python cannot make virtual environments; run: sudo apt-get install $package"
    say "installing $package"
    { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y "$package"; } >&2 ||
        fail "apt-get could not install $package"
}

python=$(find_python)
if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
    ensure_venv "$python"
    say "making .venv with $("$python" --version)"
    "$python" -m venv --clear .venv
fi

pip() { .venv/bin/python -m pip --disable-pip-version-check "$@"; }
say "installing the pinned packages"
pip install -q -c constraints.txt pip setuptools
pip install -q -c constraints.txt --group dev --no-build-isolation -e '.[postgres,mysql,kafka]'

# Clients and servers that tests talk with; without them those tests are skipped.
ensure_clients() {
    local missing=()
    command -v psql >/dev/null || missing+=(postgresql-client)
    command -v openssl >/dev/null || missing+=(openssl)
    [ -e /usr/share/java/postgresql.jar ] || missing+=(libpostgresql-jdbc-java)
    [ -x /usr/sbin/mariadbd ] || missing+=(mariadb-server-core)
    command -v mvn >/dev/null || missing+=(maven)
    # mariadb-install-db needs my_print_defaults, which comes with the client.
    [ -x /usr/bin/my_print_defaults ] || missing+=(mariadb-client-core)
    [ ${#missing[@]} = 0 ] && return
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        say "not installed, so their tests are skipped: ${missing[*]}"
        return
    fi
    say "installing ${missing[*]}"
    { apt-get -qq update &&
        DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "${missing[@]}"
    } >&2 || say "apt-get could not install ${missing[*]}; their tests are skipped"
}
ensure_clients
.venv/bin/python tests/mysql_servers.py fetch >&2 || say "MySQL cannot be had here; its tests are skipped"
.venv/bin/python tests/kafka_servers.py fetch >&2 || say "Kafka cannot be had here; its tests are skipped"

java=$(.venv/bin/python -m headwater.runtime.java) || fail "no Java; see above"
say "Java: $java"
# Spark starts in half the time with it, and works without it.
say "making an archive of Spark's classes"
.venv/bin/python -m headwater.runtime.class_archive >/dev/null 2>&1 ||
    say "no archive of Spark's classes could be made; Spark starts more slowly"
