//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/kube-openapi/pkg/handler3"

	"github.com/fairlead-proxy/fairlead/cmd/answer"
	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/relay"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/ask"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// views is a cluster of two kube-apiservers: the second has two group-versions more, and its etcd is late.
type views struct {
	*cluster.Cluster
	front, replica *cluster.Front
	second         *relay.Relay // before the second server
}

// What a run by hand may have more of, with -args.
var (
	crds    = flag.Int("crds", 12, "`number` of CustomResourceDefinitions of TestOneView/established")
	clients = flag.Int("clients", 60, "`number` of clients of TestOneView/even")
	servers = flag.Int("servers", 2, "`number` of kube-apiservers of TestOneView")
)

// soon is enough for slow cores to merge documents, and less than the 50 s between two questions without a cause.
const soon = 45 * time.Second

// only are the group-versions that one server has.
var only = []string{"admissionregistration.k8s.io/v1beta1", "coordination.k8s.io/v1beta1"}

// Several kube-apiservers are one for a client: it stays with one, whatever a document lists is
// served, and nothing is lost.
func TestOneView(t *testing.T) {
	w := &views{Cluster: suite.Start(t, cluster.Config{Dir: suite.Folder(t, "view")})}
	etcd := must.Get(relay.Start(t.Context(), strings.TrimPrefix(w.EtcdURLs()[0], "http://")))(t)
	must.Do(t, w.AddAPIServer(t.Context(), "http://"+etcd.Address, "--runtime-config="+strings.Join(only, "=true,")+"=true"))
	w.second = must.Get(relay.Start(t.Context(), strings.TrimPrefix(w.EndpointOf(1).URL, "https://")))(t)
	more := ""
	for i := 2; i < *servers; i++ {
		must.Do(t, w.AddAPIServer(t.Context(), w.EtcdURLs()[0]))
		more += "," + w.EndpointOf(i).URL
	}
	fairlead := suite.Build(t, t.TempDir())
	local := "--local-apiserver=" + w.EndpointOf(0).URL + ",https://" + w.second.Address + more
	w.front = must.Get(w.StartFairlead(t.Context(), cluster.Fairlead{Path: fairlead, Args: []string{local}}))(t)
	local = "--local-apiserver=" + w.EndpointOf(1).URL + "," + w.EndpointOf(0).URL + more
	w.replica = must.Get(w.StartFairlead(t.Context(), cluster.Fairlead{Path: fairlead, Name: "replica", Args: []string{local}}))(t)
	etcd.Delay(100 * time.Millisecond)
	suite.Cases[*views]{{"late", testLate}, {"listed", testListed}, {"established", testEstablished}, {"orphans", testOrphans}, {"even", testEven}}.Run(t, w)
}

// kube-apiserver's own mixed version proxy (KEP-4020) has nothing to do behind Fairlead: what a
// server lacks goes to one that has it, without a second detour.
func TestPeers(t *testing.T) {
	t.Parallel() // most of the time passes in waiting: peers look for each other by Leases
	w := &views{Cluster: suite.Start(t, cluster.Config{Dir: suite.Folder(t, "peers")})}
	peer := []string{"--feature-gates=UnknownVersionInteroperabilityProxy=true", "--peer-ca-file=" + w.PKI.Serving.CertFile, "--advertise-address=127.0.0.1"}
	must.Do(t, w.AddAPIServer(t.Context(), w.EtcdURLs()[0], peer...))
	must.Do(t, w.AddAPIServer(t.Context(), w.EtcdURLs()[0], append(peer, "--runtime-config="+only[1]+"=true")...))
	lacks, has := w.EndpointOf(1), w.EndpointOf(2)
	direct := suite.Client(t, lacks, w.Admin())
	path := "/apis/" + only[1] + "/leasecandidates"
	status := func(c *http.Client, at cluster.Endpoint) (bool, string) {
		r := must.Get(ask.Do(t.Context(), c, http.MethodGet, at.URL+path, nil, ""))(t)
		return r.Code == http.StatusOK, fmt.Sprint(r.Code, r.Body)
	}
	suite.Eventually(t, 3*time.Minute, "one server asks its peer", func() (bool, string) { return status(direct, lacks) })
	rerouted := func() (out string) {
		for line := range strings.Lines(must.Get(ask.Get(t.Context(), direct, lacks.URL+"/metrics"))(t)) {
			if strings.HasPrefix(line, "apiserver_rerouted_request_total") && !strings.Contains(line, `resource=""`) { // peers read each other's discovery
				out += line
			}
		}
		return out
	}
	before := rerouted()
	check.Same(t, true, before != "", "the server that lacks the group-version counts no rerouted request")
	servers := "--local-apiserver=" + lacks.URL + "," + has.URL
	w.front = must.Get(w.StartFairlead(t.Context(), cluster.Fairlead{Path: suite.Build(t, t.TempDir()), Args: []string{servers}}))(t)
	suite.Eventually(t, soon, "it is listed", func() (bool, string) { return slices.Contains(w.listed(t), only[1]), "" })
	for range 8 { // connections, of which half have the server that lacks it
		if ok, why := status(suite.Client(t, w.front.Endpoint, w.Admin()), w.front.Endpoint); !ok {
			t.Error(why)
		}
	}
	check.Same(t, before, rerouted(), "rerouted requests, before and after those through Fairlead")
}

// get gets a document in its newest form.
func (w *views) get(t *testing.T, from *cluster.Front, path string) string {
	t.Helper()
	accept := http.Header{"Accept": {"application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"}}
	r := must.Get(ask.Do(t.Context(), suite.Client(t, from.Endpoint, w.Admin()), http.MethodGet, from.Endpoint.URL+path, accept, ""))(t)
	check.Same(t, http.StatusOK, r.Code, "status of %s", path)
	return r.Body
}

// listed returns what /apis lists.
func (w *views) listed(t *testing.T) (out []string) {
	t.Helper()
	var list apidiscoveryv2.APIGroupDiscoveryList
	must.Do(t, json.Unmarshal([]byte(w.get(t, w.front, "/apis")), &list))
	for _, g := range list.Items {
		for _, v := range g.Versions {
			out = append(out, g.Name+"/"+v.Version)
		}
	}
	return out
}

// No list of the watch cache lacks what its connection has just created and seen. Right after the
// create it may, as directly: the cache may come after the answer.
func testLate(t *testing.T, w *views) {
	const maps, map1 = "/api/v1/namespaces/default/configmaps", `{"metadata":{"name":%q}}`
	here, gone := timeTravel(t, w.Cluster, maps, map1, w.front.Endpoint)
	there, goneThere := timeTravel(t, w.Cluster, maps, map1, w.EndpointOf(0), w.EndpointOf(1))
	t.Logf("of 80 lists right after a create lacked it: directly %d, here %d", there, here)
	check.Same(t, 0, gone+goneThere, "objects that are gone from a list of their own connection")
	if more := here - there; more > 20 { // of one client over both servers, half
		t.Errorf("here %d more than directly", more)
	}
}

// Nothing that /apis lists is 404, over any connection.
func testListed(t *testing.T, w *views) {
	suite.Eventually(t, soon, "every group-version is listed", func() (bool, string) {
		all := strings.Join(w.listed(t), " ")
		return strings.Contains(all, only[0]) && strings.Contains(all, only[1]), all
	})
	asked := 0
	for range 10 {
		c := suite.Client(t, w.front.Endpoint, w.Admin())
		for _, gv := range w.listed(t) {
			asked++
			r := must.Get(ask.Do(t.Context(), c, http.MethodGet, w.front.Endpoint.URL+"/apis/"+gv, nil, ""))(t)
			check.Same(t, http.StatusOK, r.Code, "%s", gv)
		}
	}
	t.Logf("%d group-versions asked for", asked)
	for _, path := range []string{"/apis", "/api", "/openapi/v3", "/openapi/v2"} {
		for _, front := range []*cluster.Front{w.front, w.replica} { // OpenAPI comes after readiness
			suite.Eventually(t, soon, path+" is served", func() (bool, string) {
				err := ask.Serves(t.Context(), suite.Client(t, front.Endpoint, w.Admin()), front.Endpoint.URL+path)
				return err == nil, fmt.Sprint(err)
			})
		}
		suite.Eventually(t, soon, "both replicas have the same "+path, func() (bool, string) {
			a, b := w.get(t, w.front, path), w.get(t, w.replica, path)
			return a == b, fmt.Sprintf("%d and %d bytes", len(a), len(b))
		})
	}
	var index handler3.OpenAPIV3Discovery
	must.Do(t, json.Unmarshal([]byte(w.get(t, w.front, "/openapi/v3")), &index))
	if index.Paths["apis/"+only[0]].ServerRelativeURL == "" || !strings.Contains(w.get(t, w.front, "/openapi/v2"), "/apis/"+only[1]) {
		t.Error("OpenAPI has no " + strings.Join(only, " or no "))
	}
	check.Has(t, w.get(t, w.front, "/fairlead/explain?path=/apis/"+only[0]), "the local apiserver "+w.second.Address+" (not all of them serve it)")
	status := w.get(t, w.front, "/fairlead/status")
	check.Same(t, true, strings.Contains(status, `"release": "v1.`) && strings.Count(status, only[0]) == 1, "status: %s", status)
	for range 2 { // each connects to another server
		c := suite.Client(t, w.front.Endpoint, w.Admin())
		for _, item := range index.Paths {
			must.Get(ask.Get(t.Context(), c, w.front.Endpoint.URL+item.ServerRelativeURL))(t)
		}
	}
}

// A resource is served once its connection sees that it is established, and over all connections
// once it is listed, though the other server hears of it later.
func testEstablished(t *testing.T, w *views) {
	const definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	var clients []*http.Client
	for range 2 * *servers { // two of each server
		clients = append(clients, suite.Client(t, w.front.Endpoint, w.Admin()))
	}
	url, groups := w.front.Endpoint.URL, make([]string, *crds)
	for i := range groups {
		group := fmt.Sprintf("g%d.example.com", i)
		groups[i] = group
		w.create(t, clients[i%len(clients)], w.front.Endpoint, definitions, fmt.Sprintf(`{"metadata":{"name":"things.%s"},"spec":{"group":%q,"scope":"Cluster","names":{"plural":"things","singular":"thing","kind":"Thing"},
			"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]}}`, group, group))
	}
	for i, group := range groups {
		c := clients[i%len(clients)]
		suite.Eventually(t, time.Minute, group+" is established", func() (bool, string) {
			crd := must.Get(ask.Get(t.Context(), c, url+definitions+"/things."+group))(t)
			return strings.Contains(crd, `"type":"Established"`), crd
		})
		w.create(t, c, w.front.Endpoint, "/apis/"+group+"/v1/things", fmt.Sprintf(`{"apiVersion":"%s/v1","kind":"Thing","metadata":{"name":"first"}}`, group))
		suite.Eventually(t, time.Minute, group+" is listed", func() (bool, string) { return slices.Contains(w.listed(t), group+"/v1"), "" })
		for _, c := range clients {
			r := must.Get(ask.Do(t.Context(), c, http.MethodGet, url+"/apis/"+group+"/v1/things", nil, ""))(t)
			if r.Code != http.StatusOK && r.Code != http.StatusTooManyRequests { // a server's cache begins, directly too
				t.Errorf("%s, over another connection: %d %s", group, r.Code, r.Body)
			}
		}
	}
}

// A controller manager that comes through Fairlead deletes everything in a namespace.
func testOrphans(t *testing.T, w *views) {
	const namespaces, spaces, group = 12, "/api/v1/namespaces", "/apis/coordination.k8s.io/v1beta1"
	must.Get(w.StartControllerManager(t.Context(), w.front.Endpoint))(t)
	c, second := suite.Client(t, w.front.Endpoint, w.Admin()), suite.Client(t, w.EndpointOf(1), w.Admin())
	for i := range namespaces {
		name := fmt.Sprint("orphans-", i)
		w.create(t, c, w.front.Endpoint, spaces, `{"metadata":{"name":"`+name+`"}}`)
		for j := range 2 {
			w.create(t, c, w.front.Endpoint, group+"/namespaces/"+name+"/leasecandidates", fmt.Sprintf(`{"metadata":{"name":"candidate-%d"},"spec":{"leaseName":"l","binaryVersion":"1.36.0","emulationVersion":"1.36.0","strategy":"OldestEmulationVersion"}}`, j))
		}
		r := must.Get(ask.Do(t.Context(), c, http.MethodDelete, w.front.Endpoint.URL+spaces+"/"+name, nil, ""))(t)
		check.Same(t, http.StatusOK, r.Code, "deleting namespace %s", name)
	}
	suite.Eventually(t, 3*time.Minute, "the namespaces are gone", func() (bool, string) {
		left := must.Get(ask.Get(t.Context(), c, w.front.Endpoint.URL+spaces))(t)
		return !strings.Contains(left, `"orphans-`), left
	})
	orphans := must.Get(ask.Get(t.Context(), second, w.EndpointOf(1).URL+group+"/leasecandidates"))(t)
	check.Same(t, 0, strings.Count(orphans, `"name":"candidate-`), "orphaned objects")
}

// Clients of both protocols are spread evenly, also after a server was away for a while: within two
// minutes, docs/operations.md says.
func testEven(t *testing.T, w *views) {
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	var failed atomic.Int64
	defer func() { cancel(); all.Wait() }()
	for i := range *clients {
		c := suite.TLS(t, w.front.Endpoint, w.Admin())
		rt := &http.Transport{TLSClientConfig: c, MaxConnsPerHost: 1, Protocols: ask.Only(i%2 == 1)}
		all.Go(func() {
			defer rt.CloseIdleConnections()
			for ctx.Err() == nil {
				r, err := ask.Do(ctx, &http.Client{Transport: rt}, http.MethodGet, w.front.Endpoint.URL+"/api/v1/namespaces/default", nil, "")
				if ctx.Err() == nil && (err != nil || r.Code != http.StatusOK) {
					failed.Add(1)
				}
				<-time.After(250 * time.Millisecond)
			}
		})
	}
	// within reports whether each server has least to most tenths of its share of the clients.
	within := func(least, most int64) (bool, string) {
		var status answer.Status
		must.Do(t, json.Unmarshal([]byte(w.get(t, w.front, "/fairlead/status")), &status))
		var counts []int64
		sum := int64(0)
		for _, e := range status.LocalServers {
			counts, sum = append(counts, e.Clients*10*int64(*servers)), sum+e.Clients
		}
		return sum >= int64(*clients) && slices.Max(counts) <= most*sum && slices.Min(counts) >= least*sum, fmt.Sprint(counts)
	}
	suite.Eventually(t, 2*time.Minute, "even", func() (bool, string) { return within(0, 11) })
	w.second.Cut(true)
	suite.Eventually(t, soon, "one has none", func() (bool, string) { ok, counts := within(1, 1000); return !ok, counts })
	w.second.Cut(false)
	begun := time.Now()
	suite.Eventually(t, 2*time.Minute, "even again", func() (bool, string) { return within(0, 13) })
	t.Logf("even again after %v; %d requests failed", time.Since(begun).Round(time.Second), failed.Load())
	check.Same(t, 0, failed.Load(), "failed requests")
}

func (w *views) create(t *testing.T, c *http.Client, at cluster.Endpoint, path, body string) {
	t.Helper()
	r := must.Get(ask.Do(t.Context(), c, http.MethodPost, at.URL+path, nil, body))(t)
	must.Be(t, r.Code == http.StatusCreated, "creating %s at %s: %d %s", body, path, r.Code, r.Body)
}

// An extension server with two replicas over one etcd, which one of them sees late: no client goes
// back in time. kube-apiserver keeps one connection, here to the late one.
func TestReplicas(t *testing.T) {
	const gv = "wardle.example.com/v1beta1"
	w := suite.Start(t, cluster.Config{Dir: suite.Folder(t, "replicas")})
	etcd := must.Get(relay.Start(t.Context(), strings.TrimPrefix(w.EtcdURLs()[0], "http://")))(t)
	b := cluster.Backend{Namespace: "wardle", Service: "api", CAFile: w.PKI.Serving.CertFile, GroupVersions: []string{gv}}
	var urls []string
	for i, at := range []string{w.EtcdURLs()[0], "http://" + etcd.Address} {
		e, args, err := w.ExtensionArgs(&b)
		must.Do(t, err)
		must.Get(w.Run(t.Context(), cluster.Command{
			Name: fmt.Sprint("sample-apiserver-", i), Path: suite.Tool(t, "sample-apiserver"),
			Args:  append(args, "--etcd-servers="+at, "--etcd-prefix=/registry/wardle.example.com"),
			Ready: e.Serves("/readyz", w.Admin()),
		}))(t)
		urls = append(urls, e.URL)
	}
	b.Annotations = map[string]string{"fairlead.dev/url": strings.Join(urls, ",")}
	must.Do(t, w.Register(t.Context(), b))
	front := must.Get(w.StartFairlead(t.Context(), cluster.Fairlead{Path: suite.Build(t, t.TempDir()), Args: []string{"--allow-url-backends"}}))(t)
	must.Do(t, w.WaitAvailable(t.Context(), front.Endpoint, gv))
	must.Do(t, w.WaitAvailable(t.Context(), w.Endpoint(), gv))
	etcd.Delay(100 * time.Millisecond)
	const flunders = "/apis/" + gv + "/namespaces/default/flunders"
	const flunder = `{"apiVersion":"` + gv + `","kind":"Flunder","metadata":{"name":%q},"spec":{"referenceType":"Flunder","flunderReference":"x"}}`
	here, hereGone := timeTravel(t, w, flunders, flunder, front.Endpoint)
	there, thereGone := timeTravel(t, w, flunders, flunder, w.Endpoint())
	t.Logf("of 80 lists right after a create lacked it: through kube-apiserver %d, here %d; of 400 later ones %d and %d", there, here, thereGone, hereGone)
	check.Same(t, true, hereGone <= thereGone, "%d objects are gone from later lists of their own connection", hereGone)
	if here > there+20 { // spread over both, half
		t.Errorf("here %d lists more than through kube-apiserver", here-there)
	}
}

// timeTravel lets connections, each with a watch, create objects and list from the watch cache; as many at once
// whichever servers take them in turn, because a busy one's cache comes later. It returns how many lists right after a
// create lacked the object, and how many later ones lacked what an earlier one had.
func timeTravel(t *testing.T, w *cluster.Cluster, collection, object string, servers ...cluster.Endpoint) (lacked, gone int64) {
	t.Helper()
	const conns, creates, later = 8, 10, 5
	var all sync.WaitGroup
	var notYet, noMore atomic.Int64
	for i := range conns {
		e := servers[i%len(servers)]
		c := suite.Client(t, e, w.Admin())
		watch := must.Get(ask.Open(t.Context(), c, e.URL+collection+"?watch=true&resourceVersion=0", nil))(t)
		defer watch.Body.Close()
		all.Go(func() {
			for j := range creates {
				name := fmt.Sprintf("f-%s-%d-%d", strings.TrimPrefix(e.URL, "https://127.0.0.1:"), i, j)
				if r, err := ask.Do(t.Context(), c, http.MethodPost, e.URL+collection, nil, fmt.Sprintf(object, name)); err != nil || r.Code != http.StatusCreated {
					t.Errorf("creating %s: %v %v", name, r, err)
					return
				}
				tries, seen := 0, 0
				for begun := time.Now(); seen <= later; tries++ {
					list, err := ask.Get(t.Context(), c, e.URL+collection+"?resourceVersion=0")
					switch {
					case err != nil || time.Since(begun) > time.Minute:
						t.Errorf("listing %s: %v", name, err)
						return
					case strings.Contains(list, `"`+name+`"`):
						seen++
					case tries == 0:
						notYet.Add(1)
					case seen > 0:
						noMore.Add(1)
						seen++
					}
				}
			}
		})
	}
	all.Wait()
	return notYet.Load(), noMore.Load()
}
