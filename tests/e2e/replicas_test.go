//go:build e2e

package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/relay"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/ask"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

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
	here, hereGone := timeTravel(t, w, front.Endpoint, gv)
	there, thereGone := timeTravel(t, w, w.Endpoint(), gv)
	t.Logf("of 80 lists right after a create lacked it: through kube-apiserver %d, here %d; of 400 later ones %d and %d", there, here, thereGone, hereGone)
	if hereGone > thereGone {
		t.Errorf("%d objects are gone from later lists of their own connection", hereGone)
	}
	if here > there+20 { // spread over both, half
		t.Errorf("here %d lists more than through kube-apiserver", here-there)
	}
}

// timeTravel lets eight connections, each with a watch, create objects and list from the watch cache. It returns how
// many lists right after a create lacked the object, and how many later ones lacked what an earlier one had.
func timeTravel(t *testing.T, w *cluster.Cluster, e cluster.Endpoint, gv string) (lacked, gone int64) {
	t.Helper()
	const conns, creates, watches, later = 8, 10, 1, 5
	flunders := e.URL + "/apis/" + gv + "/namespaces/default/flunders"
	var all sync.WaitGroup
	var notYet, noMore atomic.Int64
	for i := range conns {
		c := suite.Client(t, e, w.Admin())
		for range watches {
			watch := must.Get(ask.Open(t.Context(), c, flunders+"?watch=true&resourceVersion=0", nil))(t)
			defer watch.Body.Close()
		}
		all.Go(func() {
			for j := range creates {
				name := fmt.Sprintf(`"f-%s-%d-%d"`, strings.TrimPrefix(e.URL, "https://127.0.0.1:"), i, j)
				body := `{"apiVersion":"` + gv + `","kind":"Flunder","metadata":{"name":` + name + `},"spec":{"referenceType":"Flunder","flunderReference":"x"}}`
				if r, err := ask.Do(t.Context(), c, http.MethodPost, flunders, nil, body); err != nil || r.Code != http.StatusCreated {
					t.Errorf("creating %s: %v %v", name, r, err)
					return
				}
				tries, seen := 0, 0
				for begun := time.Now(); seen <= later; tries++ {
					list, err := ask.Get(t.Context(), c, flunders+"?resourceVersion=0")
					switch {
					case err != nil || time.Since(begun) > 20*time.Second:
						t.Errorf("listing %s: %v", name, err)
						return
					case strings.Contains(list, name):
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
