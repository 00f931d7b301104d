#!/bin/sh
# On an upgrade (deb: "upgrade", rpm: 1) the unit and the timer keep running; only a removal stops them. Where systemd does not answer, that is no failure of it.
set -e
if [ -z "${DPKG_ROOT:-}" ] && [ -d /run/systemd/system ]; then
  case "${1:-}" in remove | 0) systemctl disable --now fairlead.service fairlead-kubeconfig.timer || true ;; esac
fi
