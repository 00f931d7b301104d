//go:build e2e

package operate

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/yaml"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/netns"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/manifests"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

const balancer, firstNode, laptop = "10.0.0.10", "10.0.0.11", "10.0.0.1" // the machines of docs/tutorial.md

var nodes = []string{firstNode, "10.0.0.12", "10.0.0.13"}

// layout is a way to reach the kube-apiservers of three nodes.
type layout struct {
	section   string   // of docs/topologies.md, whose block changes the tutorial's first. Empty: none does
	port      string   // of the balancers, and of the kubeconfigs: at the address balancer
	balancers []string // the machines with HAProxy. Nil: the address is the first node's
	fairlead  string   // its port
}

// controlPlane is three nodes made by kubeadm, and HAProxy in front of them, each machine with its
// own network and /etc.
//
// kubeadm (the phases that make a control plane), etcd, which is on the first node, the
// kube-apiservers, HAProxy and Fairlead are real. ssh, systemctl, kube-proxy (cluster addresses
// lead to the machine where commands and extension servers run) and the kubelet are simulated. The
// kubelet runs only static pods, without kube-controller-manager and kube-scheduler.
type controlPlane struct {
	layout
	w      *world
	folder string            // the operator's working directory, with the repository's deploy
	images map[string]string // :: image or command → program
}

// kubeadmConfiguration has the node's own part first, which the cluster does not store.
const kubeadmConfiguration = `
apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
nodeRegistration: {name: cp%[1]d}
localAPIEndpoint: {advertiseAddress: 10.0.0.1%[1]d}
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: v1.37.2
controlPlaneEndpoint: 10.0.0.10:%[3]s
etcd: {%[2]s}
`

// The etcd of the first node, in the one folder that each node has for itself, and as the others see it.
const (
	localEtcd  = "local: {dataDir: /etc/kubernetes/etcd}"
	remoteEtcd = `external: {endpoints: ["https://10.0.0.11:2379"], caFile: /etc/kubernetes/pki/etcd/ca.crt,
  certFile: /etc/kubernetes/pki/apiserver-etcd-client.crt, keyFile: /etc/kubernetes/pki/apiserver-etcd-client.key}`
)

// haproxy is the configuration of kubeadm's guide (docs/ha-considerations.md).
const haproxy = `
defaults
    mode tcp
    timeout connect 5s
    timeout client 35s
    timeout server 35s
frontend apiserver
    bind *:%s
    default_backend apiservers
backend apiservers
    balance roundrobin
    option httpchk
    http-check connect ssl
    http-check send meth GET uri /healthz
    http-check expect status 200
    server cp1 10.0.0.11:6443 check verify none
    server cp2 10.0.0.12:6443 check verify none
    server cp3 10.0.0.13:6443 check verify none
`

// The commands that reach another machine, and systemctl on it.
const (
	sshScript       = "#!/bin/sh\nhost=${1#*@}\ncd %s/$host && HOME=$PWD exec ip netns exec $host bash -ec \"$2\"\n"
	systemctlScript = `#!/bin/sh
case "$*" in
"reload haproxy") haproxy -c -q -f /etc/haproxy/haproxy.cfg && kill -USR2 $(cat /etc/haproxy/pid) ;;
"start fairlead-kubeconfig.service") sed -n s/^ExecStart=//p /etc/systemd/system/fairlead-kubeconfig.service | sh -e ;;
"enable --now fairlead-kubeconfig.timer") grep -q ^OnCalendar=weekly /etc/systemd/system/fairlead-kubeconfig.timer ;;
*) false ;;
esac
`
)

// newControlPlane makes the nodes of a layout, until the test ends. images are the programs that
// kubelets run for images.
func newControlPlane(t *testing.T, w *world, l layout, images map[string]string) *controlPlane {
	t.Helper()
	for _, folder := range []string{"/run/netns", "/etc/netns", "/etc/kubernetes", "/etc/haproxy"} {
		netns.Hide(t, folder)
	}
	images["etcd"], images["kube-apiserver"] = suite.Tool(t, "etcd"), suite.Tool(t, "kube-apiserver")
	c := &controlPlane{layout: l, w: w, folder: t.TempDir(), images: images}
	copyDeploy(t, c.folder)
	plugin := filepath.Join(w.dir, "kubectl-fairlead")
	for name, path := range map[string]string{"kubeadm": suite.Tool(t, "kubeadm"), "kubectl": w.kubectl, "fairlead": w.fairlead, "kubectl-fairlead": plugin} {
		must.Do(t, os.Symlink(path, filepath.Join(c.folder, name)))
	}
	for name, text := range map[string]string{"ssh": fmt.Sprintf(sshScript, c.folder), "systemctl": systemctlScript} {
		must.Do(t, os.WriteFile(filepath.Join(c.folder, name), []byte(text), 0o700))
	}
	c.follow(t, "ip link add nodes type bridge && ip address add "+laptop+"/24 dev nodes && ip link set nodes up && ip route replace local 10.96.0.0/12 dev lo")
	t.Cleanup(func() { _ = exec.Command("ip", "link", "del", "nodes").Run() }) // for the next layout
	if slices.Contains(l.balancers, balancer) {
		c.machine(t, balancer)
	}
	for i, node := range nodes {
		c.machine(t, node)
		// As kube-proxy's rules, which keep the kernel tracking connections.
		c.follow(t, "ip netns exec "+node+" nft 'table ip kube-proxy { chain services { type nat hook prerouting priority dstnat; }; chain firewall { type filter hook input priority 0; ct state invalid drop; }; }'")
		suite.Put(t, "/etc/netns/"+node+"/hosts", "127.0.0.1 localhost\n10.0.0.11 cp1\n10.0.0.12 cp2\n10.0.0.13 cp3\n")
		if i == 0 && !slices.Contains(l.balancers, balancer) { // as keepalived and kube-vip do
			c.follow(t, "ip -n "+node+" address add "+balancer+"/32 dev eth0")
		}
		for _, pod := range []string{"etcd", "kube-apiserver", "fairlead"} {
			go c.kubelet(t.Context(), node, pod)
		}
		c.kubeadm(t, i+1, node)
	}
	return c
}

func (c *controlPlane) machine(t *testing.T, address string) {
	t.Helper()
	c.follow(t, fmt.Sprintf(`mkdir -p /etc/netns/%[1]s/kubernetes /etc/netns/%[1]s/haproxy /etc/netns/%[1]s/systemd/system %[1]s
ip netns add %[1]s
ip link add to-%[1]s type veth peer name eth0 netns %[1]s
ip link set to-%[1]s master nodes up
ip -n %[1]s address add %[1]s/24 dev eth0
ip -n %[1]s link set lo up
ip -n %[1]s link set eth0 up
ip -n %[1]s route add 10.96.0.0/12 via %[2]s`, address, laptop))
	t.Cleanup(func() { _ = exec.Command("ip", "link", "del", "to-"+address).Run() })
	suite.Put(t, "/etc/netns/"+address+"/haproxy/haproxy.cfg", fmt.Sprintf(haproxy, c.port))
}

func (c *controlPlane) kubeadm(t *testing.T, i int, node string) {
	t.Helper()
	phases := func(names ...string) {
		for _, name := range names {
			c.on(t, node, "kubeadm init phase "+name+" --config kubeadm.yaml")
		}
	}
	file := filepath.Join(c.folder, node, "kubeadm.yaml")
	if i > 1 {
		suite.Put(t, file, fmt.Sprintf(kubeadmConfiguration, i, remoteEtcd, c.port))
		c.follow(t, "cp -r /etc/netns/"+firstNode+"/kubernetes/pki /etc/netns/"+node+"/kubernetes/ && rm /etc/netns/"+node+"/kubernetes/pki/apiserver.*")
		phases("certs apiserver", "kubeconfig admin", "control-plane apiserver")
		c.eventually(t, "curl -fsk https://"+node+":6443/readyz")
		if slices.Contains(c.balancers, node) {
			c.balance(t, node)
		}
		return
	}
	suite.Put(t, file, fmt.Sprintf(kubeadmConfiguration, i, localEtcd, c.port))
	phases("certs all", "kubeconfig admin", "kubeconfig super-admin", "etcd local", "control-plane apiserver")
	c.eventually(t, "curl -fsk https://"+node+":6443/readyz")
	if slices.ContainsFunc(c.balancers, func(b string) bool { return b == node || b == balancer }) {
		c.balance(t, c.balancers[0])
	}
	c.eventually(t, "curl -fsk https://"+net.JoinHostPort(balancer, c.port)+"/readyz")
	phases("upload-config all")
	c.follow(t, "mkdir .kube && ln -s /etc/netns/"+node+"/kubernetes/admin.conf .kube/config")
}

func (c *controlPlane) balance(t *testing.T, machine string) {
	t.Helper()
	must.Get(c.run(t.Context(), machine, "haproxy-"+machine, "haproxy", "-W", "-f", "/etc/haproxy/haproxy.cfg", "-p", "/etc/haproxy/pid"))(t)
}

// kubelet runs a static pod of a node until ctx ends, if it has a manifest. It restarts a pod that
// has ended or whose manifest has changed.
func (c *controlPlane) kubelet(ctx context.Context, node, name string) {
	var running []byte // the pod's manifest
	var part *cluster.Part
	n := 0
	wait.NonSlidingUntilWithContext(ctx, func(ctx context.Context) {
		manifest, _ := os.ReadFile("/etc/netns/" + node + "/kubernetes/manifests/" + name + ".yaml") // it may not exist
		if part == nil || part.Ended() {
			n++
			running, part = manifest, c.container(ctx, node, fmt.Sprintf("%s-%s-%d", node, name, n), manifest)
		} else if !bytes.Equal(manifest, running) {
			running = manifest
			_ = part.Signal(syscall.SIGTERM) // it may have ended
		}
	}, 500*time.Millisecond)
}

// container runs the only container of a pod. It returns nil if the manifest is incomplete or its image is unknown.
func (c *controlPlane) container(ctx context.Context, node, name string, manifest []byte) *cluster.Part {
	var pod corev1.Pod
	if err := yaml.UnmarshalStrict(manifest, &pod); err != nil || len(pod.Spec.Containers) == 0 {
		return nil
	}
	it := pod.Spec.Containers[0]
	line := slices.Concat(it.Command, it.Args)
	if len(it.Command) == 0 {
		line = append([]string{it.Image}, line...) // the image's entrypoint
	}
	line = manifests.Arguments(line, node)
	if line[0] = c.images[line[0]]; line[0] == "" {
		return nil // ImagePullBackOff
	}
	part, err := c.run(ctx, node, name, line...)
	if err != nil {
		return nil
	}
	return part
}

func (c *controlPlane) run(ctx context.Context, node, name string, line ...string) (*cluster.Part, error) {
	part, err := c.w.Run(ctx, cluster.Command{Name: c.section + name, Path: "ip", Args: append([]string{
		"netns", "exec", node, "unshare", "--uts", "sh", "-c", `echo "$0" >/proc/sys/kernel/hostname && exec "$@"`, "cp" + node[len(node)-1:], // the host's name
	}, line...)})
	if part != nil {
		context.AfterFunc(ctx, part.Kill) // another layout has the same addresses
	}
	return part, err
}

// follow runs commands on the laptop, which is not a node.
func (c *controlPlane) follow(t *testing.T, block string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	out, err := c.bash(ctx, append([]string{"-euo", "pipefail", "-c", block}, args...)...)
	must.Be(t, err == nil, "%s %q\n%v\n%s", block, args, err, out)
	return out
}

func (c *controlPlane) on(t *testing.T, node, block string) string {
	t.Helper()
	return c.follow(t, `exec ssh "$0" "$1"`, node, block)
}

func (c *controlPlane) eventually(t *testing.T, block string) {
	t.Helper()
	suite.Eventually(t, time.Minute, block, func() (bool, string) {
		out, err := c.bash(t.Context(), "-c", block)
		return err == nil, out
	})
}

func (c *controlPlane) bash(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "bash", args...)
	cmd.WaitDelay = time.Second // for processes that it has started
	cmd.Dir, cmd.Env = c.folder, append(os.Environ(), c.env()...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (c *controlPlane) env() []string {
	return []string{"HOME=" + c.folder, "KUBECONFIG=" + c.folder + "/.kube/config", "PATH=" + c.folder + ":" + os.Getenv("PATH")}
}

// edit replaces text in a file, which must have it.
func edit(t *testing.T, file, old, text string) {
	t.Helper()
	before := read(t, file)
	must.Be(t, strings.Contains(before, old), "%s does not have %q:\n%s", file, old, before)
	suite.Put(t, file, strings.Replace(before, old, text, 1))
}
