#!/bin/sh
# On an upgrade (deb: "upgrade", rpm: 1) the unit keeps running; only a removal stops it.
set -e
if [ -z "${DPKG_ROOT:-}" ] && [ -d /run/systemd/system ]; then
  case "${1:-}" in remove | 0) systemctl disable --now fairlead.service ;; esac
fi
