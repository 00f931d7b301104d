//go:build e2e

package storm

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/volley"
)

const (
	pods   = 20_000
	length = 40 * time.Second // of a measurement
	// named is how soon the busiest caller must be seen.
	named = 10 * time.Second
)

const rule = `
rules:
- name: whole-lists
  match: {resourceRules: [{verbs: [list], apiGroups: [""], resources: [pods], clusterScope: true}]}
  wholeLists: true
  action: Rate
  perSecond: 0.05
  message: use an informer
`

// TestStorm measures others' requests and kube-apiserver's memory: without the lister, with it, with a rule, and with
// priority and fairness, which exempts system:masters, for one without that group.
func TestStorm(t *testing.T) {
	dir := suite.Folder(t, "storm")
	policy, set := filepath.Join(dir, "policy.yaml"), "apiVersion: fairlead.dev/v1\nkind: Policy\n"
	suite.Put(t, policy, set)
	c := suite.Start(t, cluster.Config{Dir: dir, APIServerArgs: []string{"--disable-admission-plugins=ServiceAccount"}})
	core := must.Get(kubernetes.NewForConfig(c.Endpoint().RESTConfig(c.Admin())))(t)
	fill(t, core)
	front := must.Get(c.StartFairlead(t.Context(), cluster.Fairlead{Path: suite.Build(t, dir), Args: []string{"--policy=" + policy, "--access-log=" + filepath.Join(dir, "access.log")}}))(t)
	w := &world{Cluster: c, front: front, log: filepath.Join(dir, "access.log"), client: func(user string, groups ...string) *http.Client {
		pair := must.Get(c.PKI.Client.Issue(user, cluster.Leaf{User: user, Groups: groups}))(t)
		return suite.Client(t, front.Endpoint, cluster.Credentials{Pair: pair})
	}}
	w.admin = suite.Client(t, front.Endpoint, c.Admin())
	grant(t, core, "devs")
	grant(t, core, "listers")

	quiet := w.measure(t, "no lister", nil)
	storm := w.measure(t, "a lister in system:masters", w.client("noisy", "system:masters"))
	suite.Put(t, policy, set+rule)
	ruled := w.measure(t, "the same, with the rule", w.client("noisy", "system:masters"))
	suite.Put(t, policy, set+"rules: []\n")
	limit(t, core)
	fair := w.measure(t, "a lister without that group, with a priority level of its own", w.client("unfair", "listers"))
	t.Logf("%d pods at %s, rounds of %s, kube-apiserver restarted before each:", pods, suite.Commit(t), length)
	for _, f := range []figures{quiet, storm, ruled, fair} {
		t.Log(f)
	}
	if ruled.lists > 4 || storm.lists < 5 {
		t.Errorf("%d lists without the rule, %d with it", storm.lists, ruled.lists)
	}
	if ruled.p99 > storm.p99 || ruled.memory > storm.memory {
		t.Errorf("the rule does not help: %v %v", ruled, storm)
	}
}

type world struct {
	*cluster.Cluster
	front  *cluster.Front
	log    string
	client func(user string, groups ...string) *http.Client
	admin  *http.Client
}

// figures are what one measurement shows.
type figures struct {
	what          string
	p50, p99      time.Duration // of others
	failed        int
	lists, refuse int64 // of the lister: complete, and 429 or 403
	memory        int64 // of kube-apiserver at most, MiB
}

func (f figures) String() string {
	return fmt.Sprintf("%s: others' p50 %s, p99 %s, %d failed; %d lists, %d refused; kube-apiserver %d MiB at most",
		f.what, f.p50.Round(time.Millisecond/10), f.p99.Round(time.Millisecond/10), f.failed, f.lists, f.refuse, f.memory)
}

func (w *world) measure(t *testing.T, what string, lister *http.Client) (f figures) {
	t.Helper()
	server := w.APIServers[0]
	must.Do(t, server.Restart(t.Context())) // its memory begins anew
	others := []*http.Client{w.client("jane", "devs"), w.client("joe", "devs")}
	path := w.front.Endpoint.URL + "/api/v1/namespaces/default/configmaps/small"
	suite.Eventually(t, time.Minute, "others are served", func() (bool, string) {
		resp, err := others[0].Get(path)
		if err != nil {
			return false, err.Error()
		}
		defer resp.Body.Close()
		return resp.StatusCode == http.StatusOK, resp.Status
	})
	suite.Pause(t, 5*time.Second) // informers have caught up
	f.what = what
	load := (&volley.Load{Every: 20 * time.Millisecond, Clients: others, Make: func(int) (method, url, body string) { return http.MethodGet, path, "" }}).Start(t)
	ctx, cancel := context.WithTimeout(t.Context(), length)
	defer cancel()
	if lister != nil {
		var lists, refused atomic.Int64
		go w.name(t)
		volley.Pace(ctx, time.Second, func(int) {
			resp, err := lister.Get(w.front.Endpoint.URL + "/api/v1/pods")
			if err != nil {
				return
			}
			defer resp.Body.Close()
			if _, err := io.Copy(io.Discard, resp.Body); err == nil && resp.StatusCode == http.StatusOK {
				lists.Add(1)
			} else if resp.StatusCode == http.StatusTooManyRequests {
				refused.Add(1)
			}
		})
		f.lists, f.refuse = lists.Load(), refused.Load()
	}
	<-ctx.Done()
	shots := load.Stop()
	f.p50, f.p99 = volley.Percentile(shots, .5), volley.Percentile(shots, .99)
	for i := range shots {
		if shots[i].Failed() {
			f.failed++
		}
	}
	status := must.Get(os.ReadFile(fmt.Sprintf("/proc/%d/status", server.PID())))(t)
	kib := must.Get(strconv.ParseInt(string(regexp.MustCompile(`VmHWM:\s+(\d+)`).FindSubmatch(status)[1]), 10, 64))(t)
	f.memory = kib >> 10
	return f
}

// name looks for the lister among the busiest callers.
func (w *world) name(t *testing.T) {
	<-time.After(named)
	resp, err := w.admin.Get(w.front.Endpoint.URL + "/fairlead/busiest?sort=bytes&limit=1")
	if err != nil {
		t.Error(err)
		return
	}
	defer resp.Body.Close()
	var a struct {
		Rows []struct {
			User, Verb, Resource string
			Requests, Out        int64
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&a); err != nil || len(a.Rows) == 0 {
		t.Error(err)
		return
	}
	t.Logf("after %s the busiest by bytes: %+v", named, a.Rows[0])
}
