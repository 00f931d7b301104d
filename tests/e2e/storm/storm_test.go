//go:build e2e

package storm

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/kubectl"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/ask"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/volley"
)

const (
	pods   = 20_000
	length = 40 * time.Second // of a measurement
	named  = 10 * time.Second // how soon the busiest caller must be seen
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
	kubectl.As(t, c.Endpoint(), c.Admin()).Feed(t, objects, "apply", "-f", "-")

	quiet := w.measure(t, "no lister", nil)
	storm := w.measure(t, "a lister in system:masters", w.client("noisy", "system:masters"))
	suite.Put(t, policy, set+rule)
	ruled := w.measure(t, "the same, with the rule", w.client("noisy", "system:masters"))
	suite.Put(t, policy, set+"rules: []\n")
	kubectl.As(t, c.Endpoint(), c.Admin()).Feed(t, limited, "apply", "-f", "-")
	fair := w.measure(t, "a lister without that group, with a priority level of its own", w.client("unfair", "listers"))
	t.Logf("%d pods at %s, rounds of %s, kube-apiserver restarted before each:", pods, suite.Commit(t), length)
	for _, f := range []figures{quiet, storm, ruled, fair} {
		t.Log(f)
	}
	check.Same(t, true, ruled.lists <= 4 && storm.lists >= 5, "%d lists without the rule, %d with it", storm.lists, ruled.lists)
	check.Same(t, true, ruled.p99 <= storm.p99 && ruled.memory <= storm.memory, "the rule does not help: %v %v", ruled, storm)
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
	must.Soon(t, time.Minute, "others are served", func() bool { return ask.Serves(t.Context(), others[0], path) == nil })
	suite.Pause(t, 5*time.Second) // informers have caught up
	f.what = what
	load := (&volley.Load{Every: 20 * time.Millisecond, Clients: others, Make: func(int) (method, url, body string) { return http.MethodGet, path, "" }}).Start(t)
	ctx, cancel := context.WithTimeout(t.Context(), length)
	defer cancel()
	if lister != nil {
		var lists, refused atomic.Int64
		go w.name(t)
		volley.Pace(ctx, time.Second, func(int) {
			switch _, err := ask.Get(t.Context(), lister, w.front.Endpoint.URL+"/api/v1/pods"); {
			case err == nil:
				lists.Add(1)
			case strings.HasPrefix(err.Error(), "429"):
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
	_, peak, _ := strings.Cut(string(status), "VmHWM:")
	must.Get(fmt.Sscan(peak, &f.memory))(t)
	f.memory >>= 10 // of KiB
	return f
}

// name looks for the lister among the busiest callers.
func (w *world) name(t *testing.T) {
	<-time.After(named)
	text, err := ask.Get(t.Context(), w.admin, w.front.Endpoint.URL+"/fairlead/busiest?sort=bytes&limit=1") // on its own goroutine
	check.Same(t, true, err == nil && strings.Contains(text, `"user"`), "%v %s", err, text)
	t.Logf("after %s the busiest by bytes: %s", named, text)
}

func fill(t *testing.T, core kubernetes.Interface) {
	t.Helper()
	g, ctx := errgroup.WithContext(t.Context())
	g.SetLimit(64)
	for i := range pods {
		g.Go(func() error {
			p := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pod-%05d", i), Labels: map[string]string{"app": "filler"}, Annotations: map[string]string{"filler": strings.Repeat("x", 1000)}},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "example.com/image:v1"}}, SchedulerName: "nobody"},
			}
			_, err := core.CoreV1().Pods("default").Create(ctx, p, metav1.CreateOptions{})
			return err
		})
	}
	must.Do(t, g.Wait())
}

// objects let the groups devs and listers do everything, and limited gives listers the smallest priority level that
// there is.
const (
	objects = `
{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: all}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin},
 subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: devs}, {apiGroup: rbac.authorization.k8s.io, kind: Group, name: listers}]}
---
{apiVersion: v1, kind: ConfigMap, metadata: {namespace: default, name: small}}
`
	limited = `
{apiVersion: flowcontrol.apiserver.k8s.io/v1, kind: PriorityLevelConfiguration, metadata: {name: listers},
 spec: {type: Limited, limited: {nominalConcurrencyShares: 1, limitResponse: {type: Reject}}}}
---
{apiVersion: flowcontrol.apiserver.k8s.io/v1, kind: FlowSchema, metadata: {name: listers}, spec: {priorityLevelConfiguration: {name: listers}, matchingPrecedence: 2, rules: [
 {subjects: [{kind: Group, group: {name: listers}}], resourceRules: [{verbs: ["*"], apiGroups: ["*"], resources: ["*"], clusterScope: true, namespaces: ["*"]}]}]}}
`
)
