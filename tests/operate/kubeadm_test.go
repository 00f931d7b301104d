//go:build e2e

package operate

import (
	"context"
	"crypto/tls"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/netns"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

// node is a control-plane node as kubeadm makes it, in folders that nobody else sees. What the kubelet does, runs the static pods, is done by the test.
type node struct {
	w       *world
	folder  string // where its operator works: the repository's deploy and a kubeadm configuration
	address string
}

const kubeadmConfig = `
apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
localAPIEndpoint: {advertiseAddress: 10.79.0.50}
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: v1.36.3
etcd: {local: {dataDir: DATA}}
`

// testKubeadm follows docs/operations.md on a node of kubeadm's own making, as somebody would who reads it for the first time: each command as it stands there.
func testKubeadm(t *testing.T, w *world) {
	n := newNode(t, w)
	steps := documentedBlocks(t, "On kubeadm, beside each kube-apiserver")
	static := documentedBlocks(t, "As a static pod")
	if len(steps) != 8 || len(static) != 2 {
		t.Fatalf("%d and %d blocks", len(steps), len(static))
	}
	look, fetch, add, apply, ready, try, lint := steps[0], steps[1], steps[2], steps[3], steps[5], steps[6], steps[7]
	t.Run("certificates", func(t *testing.T) {
		if out := n.follow(t, look); !strings.Contains(out, "CN = front-proxy-client") || strings.Contains(out, "front.example.com") || !strings.Contains(out, "IP Address:"+n.address) {
			t.Errorf("before:\n%s", out)
		}
		n.follow(t, fetch)
		n.addName(t, "front.example.com")
		n.follow(t, add)
		if out := n.follow(t, look); !strings.Contains(out, "DNS:front.example.com") {
			t.Errorf("after:\n%s", out)
		}
	})
	t.Run("apply", func(t *testing.T) { n.follow(t, apply) })
	t.Run("static pod", func(t *testing.T) {
		for _, block := range static {
			n.follow(t, block)
		}
		n.kubelet(t, "fairlead", func(ctx context.Context) error { return n.wellCome(ctx, "https://10.79.0.50:8444/readyz") })
		if out := n.follow(t, ready); !strings.Contains(out, "readyz check passed") {
			t.Errorf("readyz says:\n%s", out)
		}
	})
	t.Run("try", func(t *testing.T) {
		out := n.follow(t, try)
		for _, want := range []string{`"apiServices":`, "v1.apps", "Local APIServices are not shown"} {
			if !strings.Contains(out, want) {
				t.Errorf("it does not say %q:\n%s", want, out)
			}
		}
	})
	t.Run("lint", func(t *testing.T) {
		out := n.follow(t, lint)
		if lines := strings.Count(out, "\n"); lines != 1 || !strings.Contains(out, "--requestheader-uid-headers") {
			t.Errorf("a node as kubeadm makes it has:\n%s", out)
		}
	})
	t.Run("renew", func(t *testing.T) { n.renew(t) })
}

func newNode(t *testing.T, w *world) *node {
	t.Helper()
	netns.Hide(t, "/etc/kubernetes")
	n := &node{w: w, folder: t.TempDir(), address: "10.79.0.50"}
	suite.Check(t, os.CopyFS(filepath.Join(n.folder, "deploy"), noLinks{os.DirFS("../../deploy")}))
	for name, path := range map[string]string{"kubeadm": suite.Tool(t, "kubeadm"), "kubectl": w.kubectl, "fairlead": w.fairlead} {
		suite.Check(t, os.Symlink(path, filepath.Join(n.folder, name)))
	}
	n.write(t, "kubeadm.yaml", strings.ReplaceAll(kubeadmConfig, "DATA", t.TempDir()))
	for _, phase := range []string{"certs all", "kubeconfig admin", "kubeconfig super-admin", "etcd local", "control-plane apiserver"} {
		n.follow(t, "kubeadm init phase "+phase+" --config kubeadm.yaml")
	}
	n.kubelet(t, "etcd", nil)
	n.kubelet(t, "kube-apiserver", func(ctx context.Context) error { return n.wellCome(ctx, "https://10.79.0.50:6443/readyz") })
	// The last phases of kubeadm init that matter here: who is an administrator, and what the next kubeadm upgrade reads.
	n.follow(t, "kubeadm init phase upload-config kubeadm --config kubeadm.yaml")
	suite.Check(t, os.Mkdir(filepath.Join(n.folder, ".kube"), 0o700))
	suite.Check(t, os.Symlink("/etc/kubernetes/admin.conf", filepath.Join(n.folder, ".kube", "config")))
	return n
}

// documentedBlocks are what docs/operations.md has people type in one of its sections.
func documentedBlocks(t *testing.T, title string) []string {
	t.Helper()
	data, err := os.ReadFile("../../docs/operations.md")
	suite.Check(t, err)
	_, rest, found := strings.Cut(string(data), "# "+title+"\n")
	if !found {
		t.Fatalf("there is no section %q", title)
	}
	section, _, _ := strings.Cut(rest, "\n#")
	var blocks []string
	for _, b := range regexp.MustCompile("(?ms)^ *```(?:sh|console)\n(.*?)^ *```$").FindAllStringSubmatch(section, -1) {
		blocks = append(blocks, b[1])
	}
	return blocks
}

// follow types a block at the node. What waits for pods is left out: there is no kubelet.
func (n *node) follow(t *testing.T, block string) string {
	t.Helper()
	block = strings.ReplaceAll(block, "<node>", n.address)
	block = regexp.MustCompile(`(?m)^ *kubectl .* rollout status .*$`).ReplaceAllString(block, "")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", block)
	cmd.Dir, cmd.Env = n.folder, append(os.Environ(), "HOME="+n.folder, "KUBECONFIG=/etc/kubernetes/admin.conf", "PATH="+n.folder+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%s%v\n%s", block, err, out)
	}
	return string(out)
}

// kubelet runs what a manifest in /etc/kubernetes/manifests says, as the kubelet would.
func (n *node) kubelet(t *testing.T, name string, isReady func(context.Context) error) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("/etc/kubernetes/manifests", name+".yaml"))
	suite.Check(t, err)
	var pod corev1.Pod
	suite.Check(t, yaml.UnmarshalStrict(data, &pod))
	c := pod.Spec.Containers[0]
	line := slices.Concat(c.Command, c.Args)
	if len(c.Command) == 0 {
		// The image's entrypoint. The node has a network of its own only as far as its address goes.
		line = slices.Concat([]string{"fairlead"}, c.Args, []string{"--bind-address=" + n.address})
	}
	for i, arg := range line {
		line[i] = strings.ReplaceAll(arg, "$(HOST_IP)", n.address)
	}
	path := n.w.fairlead
	if name != "fairlead" {
		path = suite.Tool(t, line[0])
	}
	_, err = n.w.Run(t.Context(), cluster.Command{Name: "node-" + name, Path: path, Args: line[1:], Ready: isReady})
	suite.Check(t, err)
	for _, v := range pod.Spec.Volumes {
		if _, err := os.Stat(v.HostPath.Path); err != nil && strings.HasPrefix(v.HostPath.Path, "/etc/kubernetes") {
			t.Errorf("%s mounts what is not there: %v", name, err)
		}
	}
}

// wellCome asks for a page that anybody may see.
func (n *node) wellCome(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return exec.CommandContext(ctx, "curl", "-fsk", url).Run()
}

// renew does what the section on certificates says, and wants both servers to present what is new without a restart.
func (n *node) renew(t *testing.T) {
	t.Helper()
	before := n.presented(t)
	n.follow(t, "kubeadm certs renew apiserver && kubeadm certs renew front-proxy-client")
	suite.Eventually(t, 90*time.Second, "presented", func() (bool, string) {
		now := n.presented(t)
		return now != before, now
	})
	if out := n.follow(t, "kubectl --server=https://"+n.address+":8443 get --raw /fairlead/status"); !strings.Contains(out, `"apiServices":`) {
		t.Error(out)
	}
}

// presented is the serial number of the certificate at the front door.
func (n *node) presented(t *testing.T) string {
	t.Helper()
	conn, err := (&tls.Dialer{Config: &tls.Config{RootCAs: suite.Pool(t, "/etc/kubernetes/pki/ca.crt"), MinVersion: tls.VersionTLS12}}).DialContext(t.Context(), "tcp", n.address+":8443")
	suite.Check(t, err)
	defer conn.Close()
	return conn.(*tls.Conn).ConnectionState().PeerCertificates[0].SerialNumber.String()
}

// addName adds a name to the kubeadm configuration, and the node's address: there is no default route here that tells kubeadm.
func (n *node) addName(t *testing.T, name string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(n.folder, "kubeadm.yaml"))
	suite.Check(t, err)
	var configuration map[string]any
	suite.Check(t, yaml.Unmarshal(data, &configuration))
	configuration["apiServer"] = map[string]any{"certSANs": []string{name}}
	data, err = yaml.Marshal(configuration)
	suite.Check(t, err)
	node, _, _ := strings.Cut(kubeadmConfig, "---")
	n.write(t, "kubeadm.yaml", node+"---\n"+string(data))
}

func (n *node) write(t *testing.T, name, text string) {
	t.Helper()
	suite.Check(t, os.WriteFile(filepath.Join(n.folder, name), []byte(text), 0o600))
}
