#!/bin/sh
# The unit is not started: it first needs keys, a kubeconfig and /etc/default/fairlead. After an upgrade, a running unit is restarted with the new program.
set -e
if [ -z "${DPKG_ROOT:-}" ] && [ -d /run/systemd/system ]; then
  systemctl daemon-reload
  systemctl try-restart fairlead.service
fi
