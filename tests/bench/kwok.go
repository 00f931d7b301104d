package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/kit/ask"
	"github.com/fairlead-proxy/fairlead/tests/kit/try"
	"github.com/fairlead-proxy/fairlead/tests/tools"
)

const (
	podsPerNode, podsPerNamespace = 10, 100
	// rate is how many requests the measured client begins a second. kinds of them take turns.
	rate, kinds = 25, 5
	// lag is how many of these turns after its creation a pod is deleted: two seconds, in which kwok makes it run.
	lag = 10

	kwokPod = `{"metadata":{"name":"%s"},"spec":{"nodeName":"kwok-%d","containers":[{"name":"main","image":"example.com/main"}]}}`
	core    = "/api/v1/"
	leases  = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
)

// simulation is a cluster whose nodes and pods kwok pretends to run.
type simulation struct {
	*world

	namespaces int
	home       *http.Client // of kube-apiserver
	turn       int          // names what it creates
}

// road is a way to kube-apiserver, for kwok and the measured client alike.
type road struct {
	row     string
	tables  []string // one Fairlead and three have one each, with a row for kube-apiserver itself
	to      cluster.Endpoint
	servers []*peer // whose cost is measured: Fairleads, or kube-apiserver
}

// simulated compares kube-apiserver itself, one Fairlead, and three behind HAProxy. All rounds count.
func simulated(ctx context.Context, w *world) {
	s := &simulation{world: w, namespaces: w.o.pick(10, 50), home: w.visitor()}
	one, three := w.through(ctx, 1), w.through(ctx, 3)
	directly := road{row: aggregator, tables: slices.Concat(one.tables, three.tables), to: w.Endpoint(), servers: []*peer{w.have(ctx, aggregator)}}
	s.fill(ctx)
	s.start(ctx, directly).Kill() // all pods begin to run in it
	inTurns([]road{directly, one, three}, min(w.o.rounds, 5), func(r road) {
		kwok := s.start(ctx, r)
		got := s.observe(ctx, r)
		kwok.Kill()
		for _, table := range r.tables {
			w.r.add(table, r.row, got)
		}
	})
}

// through starts Fairleads, and HAProxy in front of several.
func (w *world) through(ctx context.Context, n int) road {
	name, address, servers := fmt.Sprintf("kwok-%d", n), freeAddress(ctx), ""
	r := road{row: fairlead, tables: []string{name}}
	for i := range n {
		p := w.launch(ctx, fmt.Sprintf("%s-fairlead-%d", name, i))
		r.to, r.servers = p.front.Endpoint, append(r.servers, p)
		servers += fmt.Sprintf("    server %s %s check\n", p.name, p.address)
	}
	if n > 1 {
		r.to.URL = "https://" + address
		listen := fmt.Sprintf("listen fairleads\n    bind %s\n%s", address, servers)
		try.Get(w.StartHAProxy(ctx, name+"-haproxy", listen, r.to.Serves("/readyz", w.Admin())))
	}
	return r
}

// visitor returns a client with a connection of its own, which ends after a turn.
func (w *world) visitor() *http.Client {
	tc := w.proven("visitor", masters)
	return &http.Client{Transport: &http.Transport{TLSClientConfig: tc, Protocols: ask.Only(true), IdleConnTimeout: time.Second}}
}

// send makes a request and returns the body of its answer.
func send(ctx context.Context, c *http.Client, method, url, body string) string {
	header := map[string]http.Header{http.MethodPatch: {"Content-Type": {"application/merge-patch+json"}}}[method]
	got := try.Get(ask.Do(ctx, c, method, url, header, body))
	if got.Code/100 != 2 {
		try.Do(fmt.Errorf("%s %s: status %d: %.1000s", method, url, got.Code, got.Body))
	}
	return got.Body
}

// fill creates the nodes and their pods.
func (s *simulation) fill(ctx context.Context) {
	create := func(path, format string, values ...any) {
		send(ctx, s.home, http.MethodPost, s.Endpoint().URL+path, fmt.Sprintf(format, values...))
	}
	var group errgroup.Group
	group.SetLimit(8) // more than two processors can serve at once
	for n := range s.namespaces {
		group.Go(func() (err error) {
			defer try.Catch(&err)
			own := fmt.Sprintf("%snamespaces/kwok-%d", core, n)
			create(core+"namespaces", `{"metadata":{"name":"kwok-%d"}}`, n)
			create(own+"/serviceaccounts", `{"metadata":{"name":"default"}}`)
			for i := range podsPerNamespace {
				node := (n*podsPerNamespace + i) / podsPerNode
				if i%podsPerNode == 0 {
					create(core+"nodes", `{"metadata":{"name":"kwok-%d"}}`, node)
				}
				create(own+"/pods", kwokPod, fmt.Sprintf("pod-%d", i), node)
			}
			return nil
		})
	}
	try.Do(group.Wait())
}

// start starts kwok on a road. It is ready when all nodes have Leases, all pods run, and it has nothing else to do.
func (s *simulation) start(ctx context.Context, r road) *cluster.Part {
	for _, p := range r.servers {
		if p.front != nil {
			try.Do(p.part.Restart(ctx)) // for its memory
		}
	}
	s.turn++
	name, nodes := fmt.Sprintf("kwok-turn-%d", s.turn), s.namespaces*podsPerNamespace/podsPerNode
	send(ctx, s.home, http.MethodDelete, s.Endpoint().URL+leases, "")           // each kwok is another holder
	as := cluster.Leaf{User: "kwok", Groups: []string{masters, "system:nodes"}} // whose flow schemas are the kubelets'
	args := []string{"--kubeconfig=" + try.Get(s.Kubeconfig(r.to, name, as)), "--config=tests/bench/kwok.yaml", "--v=WARN"}
	path, before := try.Get(tools.Path(ctx, tools.Config{Progress: os.Stderr}, "kwok")), s.asked(ctx)
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute) // the first takes most of one
	defer cancel()
	return try.Get(s.Run(ctx, cluster.Command{Name: name, Path: path, Args: args, Ready: func(ctx context.Context) (err error) {
		defer try.Catch(&err)
		pause(ctx, time.Second)
		asked := s.asked(ctx) - before
		before += asked
		held := strings.Count(send(ctx, s.home, http.MethodGet, s.Endpoint().URL+leases, ""), `"holderIdentity"`)
		idle := send(ctx, s.home, http.MethodGet, s.Endpoint().URL+core+"pods?limit=1&fieldSelector=status.phase!=Running", "")
		// Ten seconds' renewals may come within three.
		if asked > float64(nodes)/4 || held < nodes || !strings.Contains(idle, `"items":[]`) {
			return fmt.Errorf("%.0f requests in the last second, %d Leases, a pod that does not run: %.200s", asked, held, idle)
		}
		return nil
	}}))
}

// asked returns how many requests of kwok have reached kube-apiserver.
func (s *simulation) asked(ctx context.Context) (n float64) {
	for series, value := range try.Get(ask.Metrics(ctx, s.home, s.Endpoint().URL)) {
		if strings.HasPrefix(series, `apiserver_flowcontrol_dispatched_requests_total{flow_schema="system-node`) {
			n += value
		}
	}
	return n
}

// observe measures a road while kwok uses it.
func (s *simulation) observe(ctx context.Context, r road) (got sample) {
	clients := []*http.Client{s.visitor(), s.visitor(), s.visitor()} // HAProxy spreads them
	s.visit(ctx, r, clients, 0, kinds*lag)                           // connects
	began, asked := time.Now(), s.asked(ctx)
	for _, p := range r.servers {
		got.Share -= p.cpu().Seconds()
	}
	took := s.visit(ctx, r, clients, kinds*lag, int(10*s.o.duration.Seconds()*rate)) // 20 s with -full
	for _, p := range r.servers {
		got.Share += p.cpu().Seconds()
		got.Resident += p.resident(all) / (1 << 10)
	}
	over := time.Since(began).Seconds()
	got.Share, got.Rate = 100*got.Share/over, (s.asked(ctx)-asked)/over
	got.P50, got.P99 = millis(took[len(took)/2]), millis(took[len(took)*99/100])
	return got
}

// visit begins n requests at a steady rate, and returns how long they took, sorted.
func (s *simulation) visit(ctx context.Context, r road, clients []*http.Client, first, n int) []time.Duration {
	var group errgroup.Group
	took := make([]time.Duration, n)
	for i := range took {
		group.Go(func() (err error) {
			defer try.Catch(&err)
			began := time.Now()
			s.request(ctx, clients[i%len(clients)], r.to.URL+core+"namespaces", first+i)
			took[i] = time.Since(began)
			return nil
		})
		pause(ctx, time.Second/rate)
	}
	try.Do(group.Wait())
	slices.Sort(took)
	return took
}

// request makes the i-th request of a turn. Pods come and go in the first namespace.
func (s *simulation) request(ctx context.Context, c *http.Client, base string, i int) {
	n, churn, list := i/kinds, base+"/kwok-0/pods", fmt.Sprintf("%s/kwok-%d/pods", base, 1+i/kinds%(s.namespaces-1))
	one := fmt.Sprintf("%s/pod-%d", list, n%podsPerNamespace)
	r := [kinds][]string{
		{http.MethodGet, one, ""},
		{http.MethodGet, list, ""},
		{http.MethodPatch, one, fmt.Sprintf(`{"metadata":{"annotations":{"example.com/turn":"%d-%d"}}}`, s.turn, n)},
		{http.MethodPost, churn, fmt.Sprintf(kwokPod, fmt.Sprintf("turn-%d-%d", s.turn, n), n%podsPerNode)},
		{http.MethodDelete, fmt.Sprintf("%s/turn-%d-%d", churn, s.turn, n-lag), ""},
	}[i%kinds]
	if r[0] != http.MethodDelete || n >= lag {
		send(ctx, c, r[0], r[1], r[2])
	}
}
