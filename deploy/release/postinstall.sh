#!/bin/sh
# The unit is not started: it first needs keys, a kubeconfig and /etc/default/fairlead. After an upgrade, a running unit is restarted with the new program.
# Nothing waits for that: it is up when a kube-apiserver can be reached, which may take for ever. Where systemd does not answer, that is no failure of the installation.
set -e
if [ -z "${DPKG_ROOT:-}" ] && [ -d /run/systemd/system ]; then
  systemctl daemon-reload || true
  systemctl --no-block try-restart fairlead.service || true
fi
