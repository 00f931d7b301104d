//go:build e2e

package e2e

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/kubectl"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/ask"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/servers/kubelet"
)

const bulk = 10 << 20 // the number of bytes copied each way: far more than all windows and buffers on the way

// mooring is a pod, and a caller who may do anything in its namespace.
type mooring struct {
	who       kubectl.User
	container *kubelet.Container
}

// kubectl returns arguments for kubectl in the pod's namespace.
func (m mooring) kubectl(args ...string) []string {
	return append([]string{args[0], "-n", "moorings"}, args[1:]...)
}

// testNodes uses every kubectl command that reaches into pods, over each protocol and with each kind of credentials.
func testNodes(t *testing.T, w *world) {
	node, kc := must.Get(w.StartNode(t.Context(), w.server, "harbour", "127.0.0.1"))(t), w.admin(t)
	kc.Run(t, "create", "namespace", "moorings")
	kc.Soon(t, "the namespace has its ServiceAccount", "get", "-n", "moorings", "serviceaccount/default")
	container := must.Get(node.Run(t.Context(), w.core, "moorings", "buoy"))(t)
	kc.Run(t, "create", "serviceaccount", "diver", "-n", "moorings")
	kc.Run(t, "create", "rolebinding", "divers", "-n", "moorings", "--clusterrole=cluster-admin", "--serviceaccount=moorings:diver")
	token := strings.TrimSpace(kc.Run(t, "create", "token", "diver", "-n", "moorings"))
	t.Run("metrics-server", func(t *testing.T) {
		t.Parallel() // it scrapes every ten seconds and needs two of them
		testMetricsServer(t, w)
	})
	byToken := mooring{who: w.as(t, w.server, cluster.Credentials{Token: token}), container: container}
	byToken.who.Soon(t, "the new binding is known", byToken.kubectl("auth", "can-i", "create", "pods/exec")...)
	m := mooring{who: kc, container: container}
	t.Run("logs", func(t *testing.T) { logs(t, m) })
	for _, protocol := range []struct{ name, websockets string }{{"WebSocket", "true"}, {"SPDY", "false"}} {
		env := []string{"KUBECTL_REMOTE_COMMAND_WEBSOCKETS=" + protocol.websockets, "KUBECTL_PORT_FORWARD_WEBSOCKETS=" + protocol.websockets}
		m.who.Env, byToken.who.Env = env, env
		bob := w.as(t, w.server, w.StaticToken("bob"))
		bob.Env = env
		for _, c := range []struct {
			name string
			run  func(*testing.T, mooring)
			as   mooring
		}{
			{"exec", execute, m},
			{"exec by token", execute, byToken},
			{"cp", copyFiles, m},
			{"attach", attach, m},
			{"port-forward", portForward, m},
			{"exec must be allowed", func(t *testing.T, m mooring) {
				m.who.Fail(t, "forbidden", "", m.kubectl("exec", "buoy", "--", "true")...)
			}, mooring{who: bob}},
		} {
			t.Run(c.name+" by "+protocol.name, func(t *testing.T) {
				t.Parallel()
				c.run(t, c.as)
			})
		}
	}
}

// rubbish returns bytes that cannot be compressed.
func rubbish(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(b)
	return b
}

func logs(t *testing.T, m mooring) {
	for _, l := range []string{"first", "second", "third"} {
		m.container.Log(l)
	}
	if out := m.who.Run(t, m.kubectl("logs", "buoy", "--tail=2")...); out != "second\nthird\n" {
		t.Errorf("the last two lines: %q", out)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute) // as any kubectl
	defer cancel()
	cmd := m.who.Command(ctx, m.kubectl("logs", "buoy", "-f", "--tail=1")...)
	out := must.Get(cmd.StdoutPipe())(t)
	must.Do(t, cmd.Start())
	lines := bufio.NewReader(out)
	for i, want := range []string{"third", "fourth", "fifth"} {
		if i > 0 {
			m.container.Log(want) // only after the previous line has arrived: lines must not be held back
		}
		got, err := lines.ReadString('\n')
		must.Be(t, err == nil && got == want+"\n", "followed: %q, %v, want %s", got, err, want)
	}
	cancel()
	_ = cmd.Wait() // killed
}

// execute uses every stream of an exec, and the exit code.
func execute(t *testing.T, m mooring) {
	a := m.who.Try(t, "from outside\n", m.kubectl("exec", "-i", "buoy", "--", "sh", "-c", "cat; echo 'to the other' >&2; exit 7")...)
	if a.Out != "from outside\n" || !strings.HasPrefix(a.Errs, "to the other\n") || a.Code != 7 {
		t.Errorf("exit code %d\n%s%s", a.Code, a.Out, a.Errs)
	}
	m.who.Fail(t, "executable file not found", "", m.kubectl("exec", "buoy", "--", "no-such-program")...)
	m.who.Fail(t, "not found", "", m.kubectl("exec", "no-such-pod", "--", "true")...)
}

func copyFiles(t *testing.T, m mooring) {
	dir, sent := t.TempDir(), rubbish(bulk)
	must.Do(t, os.WriteFile(dir+"/there", sent, 0o600))
	name := fmt.Sprint("cargo-", rand.Int64())
	m.who.Run(t, m.kubectl("cp", dir+"/there", "buoy:"+name)...)
	if got, err := os.ReadFile(m.container.Dir + "/" + name); err != nil || !bytes.Equal(got, sent) {
		t.Fatalf("%d bytes arrived, %v", len(got), err)
	}
	m.who.Run(t, m.kubectl("cp", "buoy:"+name, dir+"/back")...)
	if got, err := os.ReadFile(dir + "/back"); err != nil || !bytes.Equal(got, sent) {
		t.Errorf("%d bytes came back, %v", len(got), err)
	}
}

func attach(t *testing.T, m mooring) {
	a := m.who.Try(t, "ahoy\nwho goes there\n", m.kubectl("attach", "-i", "buoy")...)
	if a.Code != 0 || a.Out != "AHOY\nWHO GOES THERE\n" {
		t.Errorf("exit code %d\n%s%s", a.Code, a.Out, a.Errs)
	}
}

// portForward makes several connections through one port-forward.
func portForward(t *testing.T, m mooring) {
	echo := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write(must.Get(io.ReadAll(r.Body))(t)) }))
	t.Cleanup(echo.Close)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute) // as any kubectl
	defer cancel()
	cmd := m.who.Command(ctx, m.kubectl("port-forward", "pod/buoy", echo.URL[strings.LastIndex(echo.URL, ":"):], "--address=127.0.0.1")...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out := must.Get(cmd.StdoutPipe())(t)
	must.Do(t, cmd.Start())
	defer func() { cancel(); _ = cmd.Wait() }()
	line, err := bufio.NewReader(out).ReadString('\n')
	_, after, found := strings.Cut(line, "Forwarding from ")
	address, _, _ := strings.Cut(after, " ")
	must.Be(t, found, "kubectl printed %q (%v)\n%s", line, err, errs.String())
	var connections errgroup.Group
	for i := range 5 {
		connections.Go(func() error {
			sent := string(rubbish((i + 1) << 20))
			r, err := ask.Do(ctx, new(http.Client), http.MethodPost, "http://"+address, nil, sent)
			if err == nil && r.Body != sent {
				err = fmt.Errorf("%d of %d bytes came back, or others", len(r.Body), len(sent))
			}
			return err
		})
	}
	if err := connections.Wait(); err != nil {
		t.Errorf("%v\n%s", err, errs.String())
	}
}

// testMetricsServer runs metrics-server, the most common extension server, and kubectl top.
func testMetricsServer(t *testing.T, w *world) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	b := cluster.Backend{Namespace: "kube-system", Service: "metrics-server", GroupVersions: []string{"metrics.k8s.io/v1beta1"}}
	must.Get(w.StartExtension(ctx, "metrics-server", &b))(t)
	kc := w.admin(t)
	var nodes suite.Answer
	suite.Eventually(t, 2*time.Minute, "kubectl top nodes answers", func() (bool, string) {
		kc.Cache = t.TempDir() // it remembers for hours that there was no such group
		nodes = kc.Try(t, "", "top", "nodes")
		return nodes.Code == 0, nodes.Errs
	})
	// Times are rounded to milliseconds and usage is rounded up, so it may exceed the kubelet's figure by a thousandth.
	row := func(out string) string { return strings.Join(strings.Fields(out), " ") }
	t.Run("top nodes", func(t *testing.T) {
		if got := row(nodes.Out); !regexp.MustCompile(`^NAME CPU\(cores\) CPU\(?%\)? MEMORY\(bytes\) MEMORY\(?%\)? harbour 25[01]m 25% 512Mi 50%$`).MatchString(got) {
			t.Errorf("top nodes says:\n%s", nodes.Out)
		}
	})
	t.Run("top pods", func(t *testing.T) {
		suite.Eventually(t, 2*time.Minute, "kubectl top pods answers", func() (bool, string) { // a pod must have run for a whole period
			a := kc.Try(t, "", "top", "pods", "-n", "moorings", "--containers")
			return a.Code == 0 && regexp.MustCompile(`^POD NAME CPU\(cores\) MEMORY\(bytes\) buoy main 10[01]m 64Mi$`).MatchString(row(a.Out)), a.Out + a.Errs
		})
	})
}
