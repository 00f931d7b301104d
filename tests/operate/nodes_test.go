//go:build e2e

package operate

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/netns"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

// The machines of docs/tutorial.md.
const balancer, firstNode, laptop = "10.0.0.10", "10.0.0.11", "10.0.0.1"

var nodes = []string{firstNode, "10.0.0.12", "10.0.0.13"}

// controlPlane is three nodes made by kubeadm, and a machine with HAProxy in front of them, each
// with its own network and /etc.
//
// kubeadm (the phases that make a control plane), an etcd of three members, the kube-apiservers,
// HAProxy and Fairlead are real. ssh, systemctl, kube-proxy (cluster addresses lead to the machine
// where commands and extension servers run) and the kubelet are simulated. The kubelet runs only
// static pods, without kube-controller-manager and kube-scheduler.
type controlPlane struct {
	w      *world
	folder string            // the operator's working directory, with the repository's deploy
	images map[string]string // :: image or command → program

	stop context.CancelFunc // ends the kubelets
	done sync.WaitGroup
}

const initConfiguration = `
apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
nodeRegistration: {name: cp1}
localAPIEndpoint: {advertiseAddress: 10.0.0.11}
certificateKey: "0000000000000000000000000000000000000000000000000000000000000000"
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: v1.36.3
controlPlaneEndpoint: 10.0.0.10:6443
etcd: {local: {dataDir: /etc/kubernetes/etcd}} # the one folder that each node has for itself
`

const joinConfiguration = `
apiVersion: kubeadm.k8s.io/v1beta4
kind: JoinConfiguration
nodeRegistration: {name: cp%[1]d}
discovery: {file: {kubeConfigPath: /etc/netns/10.0.0.11/kubernetes/admin.conf}} # a token would need kube-controller-manager, which signs for it
controlPlane:
  localAPIEndpoint: {advertiseAddress: 10.0.0.1%[1]d}
  certificateKey: "0000000000000000000000000000000000000000000000000000000000000000"
`

// haproxy is the configuration of kubeadm's guide (docs/ha-considerations.md).
const haproxy = `
defaults
    mode tcp
    timeout connect 5s
    timeout client 35s
    timeout server 35s
frontend apiserver
    bind *:6443
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
	systemctlScript = "#!/bin/sh\ntest \"$*\" = 'reload haproxy' && haproxy -c -q -f /etc/haproxy/haproxy.cfg && kill -USR2 $(cat /etc/haproxy/pid)\n"
)

// newControlPlane makes the nodes. images are the programs that kubelets run for images.
func newControlPlane(t *testing.T, w *world, images map[string]string) *controlPlane {
	t.Helper()
	for _, folder := range []string{"/run/netns", "/etc/netns", "/etc/kubernetes", "/etc/haproxy"} {
		netns.Hide(t, folder)
	}
	images["etcd"], images["kube-apiserver"] = suite.Tool(t, "etcd"), suite.Tool(t, "kube-apiserver")
	c := &controlPlane{w: w, folder: t.TempDir(), images: images}
	must.Do(t, os.CopyFS(filepath.Join(c.folder, "deploy"), noLinks{os.DirFS("../../deploy")}))
	plugin := filepath.Join(filepath.Dir(w.fairlead), "kubectl-fairlead")
	for name, path := range map[string]string{"kubeadm": suite.Tool(t, "kubeadm"), "kubectl": w.kubectl, "fairlead": w.fairlead, "kubectl-fairlead": plugin} {
		must.Do(t, os.Symlink(path, filepath.Join(c.folder, name)))
	}
	for name, text := range map[string]string{"ssh": fmt.Sprintf(sshScript, c.folder), "systemctl": systemctlScript} {
		must.Do(t, os.WriteFile(filepath.Join(c.folder, name), []byte(text), 0o700))
	}
	c.follow(t, "ip link add nodes type bridge && ip address add "+laptop+"/24 dev nodes && ip link set nodes up && ip route add local 10.96.0.0/12 dev lo")
	var ctx context.Context
	ctx, c.stop = context.WithCancel(t.Context())
	t.Cleanup(func() { c.stop(); c.done.Wait() })
	c.machine(t, balancer)
	for _, node := range nodes {
		c.machine(t, node)
		c.done.Go(func() { c.kubelet(ctx, node) }) // ends with ctx
	}
	must.Do(t, os.WriteFile("/etc/netns/"+balancer+"/haproxy/haproxy.cfg", []byte(haproxy), 0o600))
	c.initialize(t)
	for i, node := range nodes[1:] {
		c.join(t, node, i+2)
	}
	return c
}

func (c *controlPlane) machine(t *testing.T, address string) {
	t.Helper()
	c.follow(t, fmt.Sprintf(`mkdir -p /etc/netns/%[1]s/kubernetes /etc/netns/%[1]s/haproxy %[1]s
ip netns add %[1]s
ip link add to-%[1]s type veth peer name eth0 netns %[1]s
ip link set to-%[1]s master nodes up
ip -n %[1]s address add %[1]s/24 dev eth0
ip -n %[1]s link set lo up
ip -n %[1]s link set eth0 up
ip -n %[1]s route add 10.96.0.0/12 via %[2]s`, address, laptop))
}

func (c *controlPlane) initialize(t *testing.T) {
	t.Helper()
	c.write(t, firstNode+"/kubeadm.yaml", initConfiguration)
	phases := func(names ...string) {
		for _, name := range names {
			c.on(t, firstNode, "kubeadm init phase "+name+" --config kubeadm.yaml")
		}
	}
	phases("certs all", "kubeconfig admin", "kubeconfig super-admin", "etcd local", "control-plane apiserver")
	c.eventually(t, "curl -fsk https://"+firstNode+":6443/readyz")
	must.Get(c.run(t.Context(), balancer, "haproxy", "haproxy", "-W", "-f", "/etc/haproxy/haproxy.cfg", "-p", "/etc/haproxy/pid"))(t)
	c.eventually(t, "curl -fsk https://"+balancer+":6443/readyz")
	phases("upload-config all", "upload-certs --upload-certs", "bootstrap-token")
	c.follow(t, "mkdir .kube && ln -s /etc/netns/"+firstNode+"/kubernetes/admin.conf .kube/config")
	c.mirror(t, firstNode, 1)
}

// join does what kubeadm join does on node cp<i>.
func (c *controlPlane) join(t *testing.T, address string, i int) {
	t.Helper()
	c.write(t, address+"/kubeadm.yaml", fmt.Sprintf(joinConfiguration, i))
	c.on(t, address, "kubeadm join phase control-plane-prepare all --config kubeadm.yaml")
	c.on(t, address, "kubeadm join phase etcd-join --config kubeadm.yaml")
	c.eventually(t, "curl -fsk https://"+address+":6443/readyz")
	c.mirror(t, address, i)
}

// mirror creates the mirror pod of an etcd, as the kubelet does: the next kubeadm join finds the
// members by them.
func (c *controlPlane) mirror(t *testing.T, address string, i int) {
	t.Helper()
	data := must.Get(os.ReadFile("/etc/netns/" + address + "/kubernetes/manifests/etcd.yaml"))(t)
	var pod corev1.Pod
	must.Do(t, yaml.UnmarshalStrict(data, &pod))
	pod.Name, pod.Spec.NodeName, pod.Annotations[corev1.MirrorPodAnnotationKey] = fmt.Sprintf("etcd-cp%d", i), fmt.Sprintf("cp%d", i), "played"
	data = must.Get(yaml.Marshal(pod))(t)
	c.write(t, "mirror.yaml", string(data))
	c.follow(t, "kubectl create -f mirror.yaml")
}

// static is a running static pod.
type static struct {
	manifest []byte
	part     *cluster.Part
	ending   bool
}

// kubelet runs a node's manifests until ctx ends: it starts new ones, stops deleted ones, and
// restarts those that have changed or exited.
func (c *controlPlane) kubelet(ctx context.Context, address string) {
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	running, count := map[string]*static{}, 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, name := range []string{"etcd", "kube-apiserver", "fairlead"} {
			text, _ := os.ReadFile("/etc/netns/" + address + "/kubernetes/manifests/" + name + ".yaml") // it may not exist
			pod := running[name]
			if pod == nil {
				if part := c.container(ctx, address, fmt.Sprintf("%s-%s-%d", address, name, count), text); part != nil {
					running[name], count = &static{manifest: text, part: part}, count+1
				}
				continue
			}
			select {
			case <-pod.part.Done():
				delete(running, name)
				continue
			default:
			}
			if !pod.ending && !bytes.Equal(text, pod.manifest) {
				pod.ending = pod.part.Signal(syscall.SIGTERM) == nil
			}
		}
	}
}

// container runs the only container of a pod. It returns nil if the manifest is incomplete or its
// image is unknown.
func (c *controlPlane) container(ctx context.Context, address, name string, manifest []byte) *cluster.Part {
	var pod corev1.Pod
	if err := yaml.UnmarshalStrict(manifest, &pod); err != nil || len(pod.Spec.Containers) == 0 {
		return nil
	}
	it := pod.Spec.Containers[0]
	line := slices.Concat(it.Command, it.Args)
	if len(it.Command) == 0 {
		line = append([]string{it.Image}, line...) // the image's entrypoint
	}
	for i, arg := range line {
		line[i] = strings.ReplaceAll(arg, "$(HOST_IP)", address)
	}
	path := c.images[line[0]]
	if path == "" {
		return nil // ImagePullBackOff
	}
	part, err := c.run(ctx, address, name, append([]string{path}, line[1:]...)...)
	if err != nil {
		return nil
	}
	return part
}

func (c *controlPlane) run(ctx context.Context, address, name string, line ...string) (*cluster.Part, error) {
	ip, err := exec.LookPath("ip")
	if err != nil {
		return nil, err
	}
	return c.w.Run(ctx, cluster.Command{Name: name, Path: ip, Args: append([]string{"netns", "exec", address}, line...)})
}

// follow runs commands on the laptop, which is not a node.
func (c *controlPlane) follow(t *testing.T, block string) string {
	t.Helper()
	out, err := c.try(t.Context(), "bash", "-euo", "pipefail", "-c", block)
	if err != nil {
		t.Fatalf("%s\n%v\n%s", block, err, out)
	}
	return out
}

// on runs commands on a node.
func (c *controlPlane) on(t *testing.T, address, block string) string {
	t.Helper()
	out, err := c.try(t.Context(), filepath.Join(c.folder, "ssh"), address, block)
	if err != nil {
		t.Errorf("%s\n%v\n%s", block, err, out)
	}
	return out
}

func (c *controlPlane) try(ctx context.Context, line ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	out, err := c.command(ctx, line...).CombinedOutput()
	return string(out), err
}

func (c *controlPlane) command(ctx context.Context, line ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, line[0], line[1:]...)
	cmd.WaitDelay = time.Second // for processes that it has started
	cmd.Dir, cmd.Env = c.folder, append(os.Environ(), "HOME="+c.folder, "KUBECONFIG="+c.folder+"/.kube/config", "PATH="+c.folder+":"+os.Getenv("PATH"))
	return cmd
}

func (c *controlPlane) eventually(t *testing.T, command string) {
	t.Helper()
	suite.Eventually(t, time.Minute, command, func() (bool, string) {
		out, err := c.try(t.Context(), "bash", "-c", command)
		return err == nil, out
	})
}

func (c *controlPlane) write(t *testing.T, name, text string) {
	t.Helper()
	must.Do(t, os.WriteFile(filepath.Join(c.folder, name), []byte(text), 0o600))
}
