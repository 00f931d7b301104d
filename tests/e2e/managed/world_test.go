//go:build e2e

package managed

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/alone"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/manifests"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/pki/issuer"
)

// world is the cluster, and the folder where the commands of docs/managed.md run.
type world struct {
	*cluster.Cluster
	folder     string
	fairlead   string // executable
	kubeconfig string // of an administrator with a token of the cluster, which Fairlead does not know
	blocks     []string
	core       kubernetes.Interface
	users      *cluster.Authority // signs certificates that the cluster does not trust
	fronts     *cluster.Authority // signs certificates of front proxies in front of Fairlead
	tokens     *issuer.Issuer
	front      *cluster.Front
}

func newWorld(t *testing.T, clouds int) *world {
	t.Helper()
	dir := suite.Folder(t, "managed")
	w := &world{folder: filepath.Join(dir, "work"), kubeconfig: filepath.Join(dir, "admin.kubeconfig"), tokens: issuer.Start(t)}
	for _, part := range []string{"base", "components", "overlays"} {
		must.Do(t, os.CopyFS(filepath.Join(w.folder, "deploy", part), os.DirFS("../../../deploy/"+part)))
	}
	w.fairlead = suite.Build(t, w.folder, "cmd/kubectl-fairlead")
	must.Do(t, os.Symlink(suite.Tool(t, "kubectl"), filepath.Join(w.folder, "kubectl")))
	w.Cluster = suite.Start(t, cluster.Config{Dir: dir, Clouds: clouds, Audit: true})
	must.Do(t, w.Cluster.Endpoint().WriteKubeconfig(w.kubeconfig, w.StaticToken("admin")))
	w.core = must.Get(kubernetes.NewForConfig(w.Cluster.Endpoint().RESTConfig(w.Admin())))(t)
	w.shared(t) // the last that a new kube-apiserver makes of what the commands read
	w.users = must.Get(w.PKI.NewAuthority("own-users-ca"))(t)
	w.fronts = must.Get(w.PKI.NewAuthority("own-fronts-ca"))(t)
	must.Do(t, os.WriteFile(filepath.Join(w.folder, "client-ca.crt"), w.users.CA.PEM(), 0o600))
	must.Do(t, os.WriteFile(filepath.Join(w.folder, "requestheader-ca.crt"), w.fronts.CA.PEM(), 0o600))
	must.Do(t, os.WriteFile(filepath.Join(w.folder, "issuers.yaml"), []byte(w.tokens.Config("oidc:")), 0o600))
	data := must.Get(os.ReadFile("../../../docs/managed.md"))(t)
	for _, b := range regexp.MustCompile("(?ms)^ *```sh\n(.*?)^ *```$").FindAllStringSubmatch(string(data), -1) {
		w.blocks = append(w.blocks, regexp.MustCompile("(?m)^   ").ReplaceAllString(b[1], "")) // they are indented in a list
	}
	must.Be(t, len(w.blocks) == 6, "%d blocks in docs/managed.md, want 6: one for each step here", len(w.blocks))
	return w
}

// follow runs commands, with localhost instead of the example's name. It appends more to the last one.
func (w *world) follow(t *testing.T, block string, more ...string) suite.Answer {
	t.Helper()
	block = strings.TrimSpace(block) + " " + strings.Join(more, " ")
	block = strings.ReplaceAll(block, "front.example.com", "localhost")
	if w.front != nil {
		block = strings.ReplaceAll(block, "https://localhost:6443", w.front.Endpoint.URL)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute) // a block takes seconds
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", block)
	cmd.Dir, cmd.Env = w.folder, append(os.Environ(), "HOME="+w.folder, "KUBECONFIG="+w.kubeconfig, "PATH="+w.folder+":"+os.Getenv("PATH"))
	return suite.Run(t, cmd, "")
}

func (w *world) must(t *testing.T, block string, more ...string) string {
	t.Helper()
	a := w.follow(t, block, more...)
	must.Be(t, a.Code == 0, "%s %v: exit code %d\n%s%s", block, more, a.Code, a.Out, a.Errs)
	return a.Out
}

// start does what the kubelet would for a pod of the cluster's Deployment, with more flags.
func (w *world) start(t *testing.T, name string, more ...string) *cluster.Front {
	t.Helper()
	d := must.Get(w.core.AppsV1().Deployments("kube-system").Get(t.Context(), "fairlead", metav1.GetOptions{}))(t)
	root := filepath.Join(w.Dir(), name)
	w.mount(t, d, root)
	kubeconfig := filepath.Join(root, "kubeconfig")
	must.Do(t, w.Cluster.Endpoint().WriteKubeconfig(kubeconfig, cluster.Credentials{Token: suite.Token(t, w.core, "kube-system", "fairlead")}))
	ports := alone.Ports(t, 2)
	args := manifests.Arguments(d.Spec.Template.Spec.Containers[0].Args, "127.0.0.1", "=/etc/", "="+root+"/etc/")
	args = append(args, "--kubeconfig="+kubeconfig, "--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", ports[0]), fmt.Sprintf("--admin-secure-port=%d", ports[1]), "--allow-loopback-backends")
	args = append(args, more...)
	ca := filepath.Join(root, "etc/fairlead/serving/ca.crt")
	f := &cluster.Front{
		Endpoint: cluster.Endpoint{URL: fmt.Sprintf("https://localhost:%d", ports[0]), CAFile: ca},
		Admin:    cluster.Endpoint{URL: fmt.Sprintf("https://localhost:%d", ports[1]), CAFile: ca},
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // with all rights, it is ready within two seconds
	defer cancel()
	f.Part = must.Get(w.Run(ctx, cluster.Command{Name: name, Path: w.fairlead, Args: args, Ready: f.Admin.Serves("/readyz", cluster.Credentials{})}))(t)
	return f
}

func (w *world) mount(t *testing.T, d *appsv1.Deployment, root string) {
	t.Helper()
	pod := d.Spec.Template.Spec
	for _, m := range pod.Containers[0].VolumeMounts {
		files := map[string][]byte{}
		for _, v := range pod.Volumes {
			switch {
			case v.Name != m.Name:
			case v.Secret != nil:
				files = must.Get(w.core.CoreV1().Secrets("kube-system").Get(t.Context(), v.Secret.SecretName, metav1.GetOptions{}))(t).Data
			default:
				c := must.Get(w.core.CoreV1().ConfigMaps("kube-system").Get(t.Context(), v.ConfigMap.Name, metav1.GetOptions{}))(t)
				for name, text := range c.Data {
					files[name] = []byte(text)
				}
			}
		}
		folder := filepath.Join(root, m.MountPath)
		must.Do(t, os.MkdirAll(folder, 0o700))
		for name, data := range files {
			must.Do(t, os.WriteFile(filepath.Join(folder, name), data, 0o600))
		}
	}
}

func (w *world) issue(t *testing.T, by *cluster.Authority, user string, groups ...string) cluster.Credentials {
	t.Helper()
	name := strings.ReplaceAll(t.Name()+"-"+user+"-of-"+filepath.Base(by.CertFile), "/", "-")
	return cluster.Credentials{Pair: must.Get(by.Issue(name, cluster.Leaf{User: user, Groups: groups}))(t)}
}

const accountName = "system:serviceaccount:kube-system:fairlead"
