#!/bin/sh
# Put the agent onto a node: its own environment, its units, a first configuration.
#
#   deploy/install-agent.sh PACKAGE [ROOT]
#
# PACKAGE is what pip takes: a wheel, a folder, or `quintal`. ROOT is where / is, so that an image can
# be prepared, or all of it tried in an empty folder. Nothing that is there already is overwritten but
# the program and the units; nothing is started.
set -eu
package=${1:?usage: install-agent.sh PACKAGE [ROOT]}
root=${2:-}
here=$(cd "$(dirname "$0")" && pwd)

"${PYTHON:-python3}" -m venv "$root/opt/quintal"
"$root/opt/quintal/bin/pip" install --quiet --upgrade "${package}[agent]"

units=$root/etc/systemd/system
install -d "$units" "$root/etc/sysusers.d" "$root/etc/quintal/creds" "$root/etc/quintal/tasks.d"
chmod 0700 "$root/etc/quintal/creds"
chmod 0755 "$root/etc/quintal/tasks.d"
install -m 0644 "$here/systemd/quintal-agent.service" "$here/systemd/quintal-task.socket" \
    "$here/systemd/quintal-task@.service" "$units"
install -m 0644 "$here/sysusers.d/quintal-task.conf" "$root/etc/sysusers.d"

if [ ! -e "$root/etc/quintal/quintal.env" ]; then
    cat > "$root/etc/quintal/quintal.env" <<'X'
QUINTAL_URL=nats://bus:4222
QUINTAL_NODE=
X
    chmod 0644 "$root/etc/quintal/quintal.env"
fi
echo "next: name the node and the bus in $root/etc/quintal/quintal.env,"
echo "      put its credentials at $root/etc/quintal/creds/node.creds (mode 0600),"
echo "      then: systemctl daemon-reload && systemctl enable --now quintal-agent"
