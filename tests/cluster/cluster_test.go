//go:build e2e

package cluster

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"

	"github.com/fairlead-proxy/fairlead/tests/must"
)

func start(t *testing.T, cfg Config) *Cluster {
	t.Helper()
	begun := time.Now()
	c := must.Get(Start(t.Context(), cfg))(t)
	t.Logf("started in %s", time.Since(begun).Round(time.Millisecond))
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func kubectl(t *testing.T, e Endpoint, cr Credentials, args ...string) string {
	t.Helper()
	path := must.Get(Config{}.complete().tool(t.Context(), "kubectl"))(t)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	must.Do(t, e.WriteKubeconfig(kubeconfig, cr))
	cmd := exec.CommandContext(t.Context(), path, append([]string{"--kubeconfig", kubeconfig, "--cache-dir", t.TempDir()}, args...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func TestUsersAreWhoTheySay(t *testing.T) {
	c := start(t, Config{})
	dave := must.Get(c.PKI.Client.Issue("dave", Leaf{User: "dave", Groups: []string{"dev"}}))(t)
	for name, tc := range map[string]struct {
		as   Credentials
		user string
		uid  string
		in   []string
	}{
		"certificate":         {as: Credentials{Pair: dave}, user: "dave", in: []string{"dev", "system:authenticated"}},
		"admin":               {as: c.Admin(), user: "admin", in: []string{"system:masters", "system:authenticated"}},
		"token":               {as: c.StaticToken("alice"), user: "alice", uid: "uid-alice", in: []string{"dev", "ops", "system:authenticated"}},
		"token without group": {as: c.StaticToken("bob"), user: "bob", uid: "uid-bob", in: []string{"system:authenticated"}},
	} {
		t.Run(name, func(t *testing.T) {
			var review struct {
				Status struct {
					UserInfo struct {
						Username string
						UID      string
						Groups   []string
					}
				}
			}
			out := kubectl(t, c.Endpoint(), tc.as, "auth", "whoami", "-o", "json")
			must.Do(t, json.Unmarshal([]byte(out), &review))
			got := review.Status.UserInfo
			if got.Username != tc.user || (tc.uid != "" && got.UID != tc.uid) || !sets.New(got.Groups...).Equal(sets.New(tc.in...)) {
				t.Errorf("got %+v, want %+v", got, tc)
			}
		})
	}
}

func TestReplicasShareState(t *testing.T) {
	c := start(t, Config{APIServers: 2})
	kubectl(t, c.EndpointOf(0), c.Admin(), "create", "namespace", "shared")
	kubectl(t, c.EndpointOf(1), c.Admin(), "get", "namespace", "shared")

	c.APIServers[0].Kill()
	kubectl(t, c.EndpointOf(1), c.Admin(), "get", "namespace", "shared")
	must.Do(t, c.APIServers[0].Restart(t.Context()))
	kubectl(t, c.EndpointOf(0), c.Admin(), "get", "namespace", "shared")
}

func TestStopAndContinue(t *testing.T) {
	c := start(t, Config{})
	client := must.Get(kubernetes.NewForConfig(c.Endpoint().RESTConfig(c.Admin())))(t)
	get := func(timeout time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		defer cancel()
		_, err := client.CoreV1().Namespaces().Get(ctx, "default", metav1.GetOptions{})
		return err
	}
	must.Do(t, get(10*time.Second))
	must.Do(t, c.APIServers[0].Signal(syscall.SIGSTOP))
	if err := get(time.Second); err == nil {
		t.Error("a stopped server answered")
	}
	must.Do(t, c.APIServers[0].Signal(syscall.SIGCONT))
	if err := get(10 * time.Second); err != nil {
		t.Error(err)
	}
}

// The error of a failed start contains the process's log, and nothing keeps running.
func TestStartFails(t *testing.T) {
	dir := t.TempDir()
	c, err := Start(t.Context(), Config{Dir: dir, APIServerArgs: []string{"--no-such-flag"}})
	if err == nil {
		t.Error(c.Close())
		t.Fatal("started with an unknown flag")
	}
	if !strings.Contains(err.Error(), "unknown flag: --no-such-flag") {
		t.Errorf("the error does not hold the end of the log: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "kube-apiserver.log")); err != nil {
		t.Errorf("the configured folder must be kept: %v", err)
	}
}
