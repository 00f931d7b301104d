#!/bin/sh
# systemd forgets the units of a removed package. Where it cannot, that is no failure of the removal. After an upgrade the new package's postinstall does it.
set -e
if [ -z "${DPKG_ROOT:-}" ] && [ -d /run/systemd/system ]; then
  case "${1:-}" in remove | 0) systemctl daemon-reload || true ;; esac
fi
