package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"

	"github.com/fairlead-proxy/fairlead/cmd/answer"
	"github.com/fairlead-proxy/fairlead/internal/printable"
)

type replica[T any] struct {
	address string
	status  T // nothing if err is set
	err     error
}

// askEach asks all replicas. They are the endpoints of the admin Service, and are asked with the kubeconfig's user.
// Each must prove that it is the kubeconfig's server before it receives the credential.
func askEach[T any](
	ctx context.Context, c *client, ask func(context.Context, *client) (T, error)) (all []replica[T], err error) {
	list := &discoveryv1.EndpointSliceList{}
	query := url.Values{"labelSelector": {discoveryv1.LabelServiceName + "=fairlead-admin"}}
	if err := c.get(ctx, "/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices", query, list); err != nil {
		return nil, err
	}
	for _, a := range addresses(list, "admin") {
		all = append(all, replica[T]{address: a})
	}
	if len(all) == 0 {
		return nil, errors.New("the Service kube-system/fairlead-admin, which lists the replicas, has no endpoints")
	}
	rc, err := c.flags.ToRESTConfig()
	if err != nil {
		return nil, err
	}
	if rc.Insecure {
		return nil, errors.New("the kubeconfig verifies no server certificate, " +
			"so its credential is not sent to addresses from an EndpointSlice")
	}
	rc.ServerName = cmp.Or(rc.ServerName, c.base.Hostname()) // all replicas have one name in their certificates
	hc, err := rest.HTTPClientFor(rc)
	if err != nil {
		return nil, err
	}
	hc.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	defer hc.CloseIdleConnections()
	const limit, most = 5 * time.Second, 16 // of one replica's answer, and concurrent requests
	workqueue.ParallelizeUntil(context.WithoutCancel(ctx), most, len(all), func(i int) {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		one := &client{base: &url.URL{Scheme: "https", Host: all[i].address}, http: hc}
		all[i].status, all[i].err = ask(ctx, one) // also when interrupted: none is without answer and error
	})
	return all, ctx.Err() // interrupted, nobody has heard of them
}

func (c *client) replicas(ctx context.Context) error {
	all, err := askEach(ctx, c, func(ctx context.Context, r *client) (*answer.Status, error) { return r.status(ctx) })
	if err != nil {
		return err
	}
	if err := c.palette.table(c.out, replicaRows(all)); err != nil {
		return err
	}
	for _, line := range differences(all) {
		if _, err := fmt.Fprintln(c.out, c.palette.paint(bad, printable.Line(line))); err != nil {
			return err
		}
	}
	ill := func(r replica[*answer.Status]) bool { return r.err != nil || sound(r.status) != nil }
	if slices.ContainsFunc(all, ill) {
		return errUnavailable
	}
	return nil
}

// addresses returns address:port of all endpoints, sorted. Two slices may have the same address
// while one replaces the other. The port has the name, or is the only one, without a name.
func addresses(list *discoveryv1.EndpointSliceList, port string) (all []string) {
	for _, s := range list.Items {
		for _, p := range s.Ports {
			if name := ptr.Deref(p.Name, ""); p.Port == nil || name != "" && name != port {
				continue
			}
			for _, e := range s.Endpoints {
				for _, a := range e.Addresses {
					all = append(all, net.JoinHostPort(a, strconv.Itoa(int(*p.Port))))
				}
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func replicaRows(all []replica[*answer.Status]) [][]cell {
	rows := [][]cell{cells("REPLICA", "ADDRESS", "READY", "UP", "AVAILABLE", "VERSION")}
	for _, r := range all {
		s := r.status
		if r.err != nil {
			rows = append(rows, slices.Concat(cells("-", r.address), []cell{{"Unknown", bad}}, cells("-", "-", "-")))
			continue
		}
		up := s.Those(func(a *answer.APIService) bool { return a.Kind != "local" && a.Available() })
		ready := map[bool]cell{true: {"True", good}, false: {"False", bad}}[s.Ready == ""]
		available := fmt.Sprintf("%d/%d", len(up), len(s.Remotes()))
		row := append(cells(cmp.Or(s.Replica, "-"), r.address), ready)
		rows = append(rows, append(row, cells(answer.Ago(s.Time, s.Started), available, s.Version)...))
	}
	return rows
}

// differences returns a line for each replica that did not answer or is not ready, and for each verdict that differs.
func differences(all []replica[*answer.Status]) (lines []string) {
	verdicts := map[string]map[string][]string{} // :: APIService → verdict → replicas
	asked := 0
	for _, r := range all {
		if r.err != nil {
			lines = append(lines, r.address+": "+r.err.Error())
			continue
		}
		asked++
		if r.status.Ready != "" {
			lines = append(lines, r.address+" is not ready: "+r.status.Ready)
		}
		for _, k := range r.status.Failing() {
			if !k.Gates {
				lines = append(lines, r.address+", check "+k.Name+": "+k.Message)
			}
		}
		for _, a := range r.status.APIServices {
			if verdicts[a.Name] == nil {
				verdicts[a.Name] = map[string][]string{}
			}
			text := strings.TrimSpace(string(a.Verdict.Status) + " " + a.Verdict.Reason)
			verdicts[a.Name][text] = append(verdicts[a.Name][text], r.address)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(verdicts)) {
		by, known := verdicts[name], 0
		var parts []string
		for _, text := range slices.Sorted(maps.Keys(by)) {
			known += len(by[text])
			parts = append(parts, text+" at "+strings.Join(by[text], ", "))
		}
		if known < asked {
			parts = append(parts, fmt.Sprintf("unknown to %d", asked-known))
		}
		if len(parts) > 1 {
			lines = append(lines, name+" is "+strings.Join(parts, "; "))
		}
	}
	return lines
}
