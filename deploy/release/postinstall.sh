#!/bin/sh
# The unit is not started: it needs keys and a kubeconfig first, and /etc/default/fairlead. After an upgrade it goes on with the new program, if it ran.
set -e
if [ -z "${DPKG_ROOT:-}" ] && [ -d /run/systemd/system ]; then
  systemctl daemon-reload
  systemctl try-restart fairlead.service
fi
