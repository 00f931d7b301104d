//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/tools"
)

// world is one cluster with everything in it that the cases need. Cases share it, each in namespaces of its own.
type world struct {
	*cluster.Cluster

	lane    string           // of Fairlead; or direct
	uids    bool             // the cluster believes X-Remote-Uid
	front   *cluster.Front   // Fairlead; nil in a direct run
	server  cluster.Endpoint // under test: Fairlead, or kube-apiserver in a direct run
	kubectl string           // executable
	cache   string           // kubectl's discovery cache for server, shared by the cases that do not test discovery
	core    kubernetes.Interface
	dynamic dynamic.Interface
}

// protos are the protocols that the server offers, the best first.
func (w *world) protos() []string {
	if w.lane == "http1" {
		return []string{"http/1.1"}
	}
	return []string{"h2", "http/1.1"}
}

// newWorld starts a cluster with the sample extension server, Fairlead in front on the given lane, and kube-controller-manager
// as a client of Fairlead.
func newWorld(t *testing.T, lane, fairlead string) *world {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute) // the parts may have to be built first
	defer cancel()
	dir, err := os.MkdirTemp("", "fairlead-e2e-"+lane+"-") //nolint:usetesting // the logs are what one needs when a case fails
	if err != nil {
		t.Fatal(err)
	}
	// kube-apiserver forgets old revisions every five minutes: a case that wants to see one forgotten has not that long.
	// One lane's cluster believes X-Remote-Uid, the other's does not, as kubeadm's. Both have more than one name for everything that a front proxy says.
	w := &world{lane: lane, uids: lane != "h2", cache: filepath.Join(dir, "kubectl-cache")}
	aliases := []string{"--requestheader-username-headers=X-Harbour-User", "--requestheader-group-headers=X-Harbour-Group", "--requestheader-extra-headers-prefix=X-Harbour-Extra-"}
	w.Cluster, err = cluster.Start(ctx, cluster.Config{Dir: dir, UIDHeaders: w.uids, APIServerArgs: append(aliases, "--etcd-compaction-interval=5s")})
	if err != nil {
		t.Fatal(err)
	}
	c := w.Cluster
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("logs of all parts: %s", dir)
			return
		}
		_ = os.RemoveAll(dir)
	})
	w.server = c.Endpoint()
	w.must(t, "starting the sample extension server", func() error { _, err := c.StartSampleAPIServer(ctx); return err })
	if lane != direct {
		args := []string{
			"--http2=" + strconv.FormatBool(lane == "h2"), "--requestheader-username-headers=X-Remote-User,X-Harbour-User", "--requestheader-group-headers=X-Remote-Group,X-Harbour-Group",
			"--requestheader-extra-headers-prefix=X-Remote-Extra-,X-Harbour-Extra-",
		}
		if w.uids {
			args = append(args, "--requestheader-uid-headers=X-Remote-Uid")
		}
		w.must(t, "starting Fairlead", func() error {
			w.front, err = c.StartFairlead(ctx, cluster.Fairlead{Path: fairlead, Args: args})
			return err
		})
		w.server = w.front.Endpoint
	}
	w.must(t, "starting kube-controller-manager", func() error { _, err := c.StartControllerManager(ctx, w.server); return err })
	w.must(t, "waiting for the sample extension server", func() error {
		ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
		defer cancel()
		return c.WaitAvailable(ctx, w.server, "wardle.example.com/v1beta1", "wardle.example.com/v1alpha1")
	})
	w.must(t, "building kubectl", func() error {
		w.kubectl, err = tools.Path(ctx, tools.Config{Progress: os.Stderr}, "kubectl")
		return err
	})
	rc := w.server.RESTConfig(c.Admin())
	w.must(t, "making clients", func() error {
		var err1, err2 error
		w.core, err1 = kubernetes.NewForConfig(rc)
		w.dynamic, err2 = dynamic.NewForConfig(rc)
		return errors.Join(err1, err2)
	})
	return w
}

func (w *world) must(t *testing.T, what string, f func() error) {
	t.Helper()
	if err := f(); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func buildFairlead(t *testing.T, dir string) string {
	t.Helper()
	file := filepath.Join(dir, "fairlead")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", file, "../../cmd/fairlead").CombinedOutput()
	if err != nil {
		t.Fatalf("building fairlead: %v\n%s", err, out)
	}
	return file
}

// namespace makes a namespace for one case. It is left behind: the whole cluster is thrown away.
func (w *world) namespace(t *testing.T) string {
	t.Helper()
	ns, err := w.core.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "case-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return ns.Name
}

// caller is kubectl as one user.
type caller struct {
	w          *world
	kubeconfig string
	cache      string
	env        []string
}

// as returns kubectl as the user of cr, pointed at e.
func (w *world) as(t *testing.T, e cluster.Endpoint, cr cluster.Credentials) caller {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := e.WriteKubeconfig(file, cr); err != nil {
		t.Fatal(err)
	}
	return caller{w: w, kubeconfig: file, cache: w.cache}
}

// admin is kubectl as a member of system:masters, pointed at the server under test.
func (w *world) admin(t *testing.T) caller {
	t.Helper()
	return w.as(t, w.server, w.Admin())
}

// answer is what a command left behind.
type answer struct {
	out  string // standard output
	errs string // standard error
	code int    // exit code
}

func (c caller) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, c.w.kubectl, append([]string{"--kubeconfig", c.kubeconfig, "--cache-dir", c.cache}, args...)...)
	cmd.Env = append(os.Environ(), c.env...)
	return cmd
}

// try runs kubectl with stdin and returns what it answered, whatever that is.
func (c caller) try(t *testing.T, stdin string, args ...string) answer {
	t.Helper()
	// 2 min: nothing that a case asks takes a second, except deletions that wait for controllers.
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := c.command(ctx, args...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && (!errors.As(err, &exit) || !exit.Exited()) {
		t.Fatalf("kubectl %s: %v\n%s%s", strings.Join(args, " "), err, out.String(), errs.String())
	}
	return answer{out: out.String(), errs: errs.String(), code: cmd.ProcessState.ExitCode()}
}

// run runs kubectl, which must succeed, and returns its standard output.
func (c caller) run(t *testing.T, args ...string) string {
	t.Helper()
	return c.feed(t, "", args...)
}

// feed is run with a standard input.
func (c caller) feed(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	a := c.try(t, stdin, args...)
	if a.code != 0 {
		t.Fatalf("kubectl %s: exit code %d\n%s%s", strings.Join(args, " "), a.code, a.out, a.errs)
	}
	return a.out
}

// fail runs kubectl, which must fail with want in its standard error.
func (c caller) fail(t *testing.T, want, stdin string, args ...string) {
	t.Helper()
	a := c.try(t, stdin, args...)
	if a.code == 0 || !strings.Contains(a.errs, want) {
		t.Errorf("kubectl %s: exit code %d, want a failure with %q\n%s%s", strings.Join(args, " "), a.code, want, a.out, a.errs)
	}
}

// eventually asks until ok says yes, or reports the last answer after a minute: twenty times what a healthy cluster needs.
func eventually(t *testing.T, what string, ok func() (bool, string)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		done, last := ok()
		if done {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("waiting until %s: %s", what, last)
		case <-tick.C:
		}
	}
}
