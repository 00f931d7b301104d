package proxy

import (
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/klog/v2"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
)

func upstreamRequest(t *testing.T, method, path, rawQuery string) Request {
	t.Helper()
	u := &url.URL{Path: path, RawQuery: rawQuery}
	if p, err := url.PathUnescape(path); err == nil {
		u.Path = p
	}
	factory := request.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")}
	info, err := factory.NewRequestInfo(&http.Request{Method: method, URL: u})
	if err != nil { // the path has a verb and nothing else
		return Request{Verb: strings.ToLower(method), Path: u.Path}
	}
	if info.APIPrefix, info.Parts = "", nil; !info.IsResourceRequest {
		info.APIGroup, info.APIVersion = "", ""
	}
	return Request(*info)
}

func FuzzParseRequest(f *testing.F) {
	for _, path := range []string{
		"/", "/api", "/api/v1", "/api/v1/pods", "/api/v1/namespaces", "/api/v1/namespaces/a", "/api/v1/namespaces/a/status", "/api/v1/namespaces/a/finalize",
		"/api/v1/namespaces/a/pods", "/api/v1/namespaces/a/pods/b", "/api/v1/namespaces/a/pods/b/exec", "/api/v1/namespaces/a/pods/b/proxy/x/y",
		"/api/v1/watch/pods", "/api/v1/watch", "/api/v1/proxy", "/api/v1/proxy/namespaces/a/pods/b/c", "/api/v1/watch/namespaces/a/pods/b",
		"/apis", "/apis/apps", "/apis/apps/v1", "/apis/apps/v1/", "/apis/apps/v1/deployments", "/apis/apps/v1/namespaces/a/deployments/b/scale",
		"%61pi/v1/pods", "/apis/a//b", "/apis/apps/v1//x", "/healthz", "/debug/pprof/profile", "/apis/g/v/r/n%2Fm", "/api/v1/namespaces/", "/api/v1/namespaces//pods",
	} {
		for _, q := range []string{"", "limit=x&watch=%31", "limit=x&fieldSelector=metadata.name%3Dx&labelSelector=a", "watch=true", "watch=0", "watch=False", "watch", "limit=5&watch=1", "limit=x&watch=1", "watch=%31", "fieldSelector=metadata.name%3Dx", "labelSelector=a",
			"fieldSelector=metadata.name%3Dx&labelSelector=%21%21&watch", "fieldSelector=&fieldSelector=metadata.name%3Dx", "fieldSelector=metadata.name%3Dx%2Fy",
			"fieldSelector=metadata.name!%3Dx&watch=%66alse", "%77%61%74%63%68=1", "labelSelector=a;b&watch=&watch=0", "labelSelector=", "fieldSelector=metadata.name%3D%3Dx,a%3Db&watch=+",
		} {
			f.Add("GET", path, q)
		}
		f.Add("DELETE", path, "")
		f.Add("POST", path, "")
		f.Add("BREW", path, "")
	}
	klog.SetSlogLogger(slog.New(slog.DiscardHandler)) // upstream logs what it cannot parse
	f.Cleanup(klog.ClearLogger)
	f.Fuzz(func(t *testing.T, method, path, rawQuery string) {
		if len(rawQuery) > maxSelectors {
			return // TestLongSelectors
		}
		check.Same(t, upstreamRequest(t, method, path, rawQuery), parseRequest(method, path, rawQuery), "%s %s?%s, like upstream", method, path, rawQuery)
	})
}

// An invalid list query must not be logged: it may hold secrets, and anybody may repeat it without limit.
func TestParseRequestLogsNothing(t *testing.T) {
	var log bytes.Buffer
	klog.SetSlogLogger(slog.New(slog.NewTextHandler(&log, nil)))
	defer klog.ClearLogger()
	for _, q := range []string{"limit=secret&a=%31", "fieldSelector=a%3D%3D%3Db&watch", "labelSelector=%21%21&watch=false", "timeoutSeconds=secret;x", "resourceVersionMatch=%zz&limit=x%31"} {
		for _, path := range []string{"/api/v1/pods", "/apis/g/v1/watch/pods", "/api/v1/namespaces/a/pods/"} {
			parseRequest("GET", path, q)
		}
	}
	check.Same(t, "", log.String(), "the log")
}

// Selectors that are too long to parse are authorized for more than they select, never for less.
func TestLongSelectors(t *testing.T) {
	long := strings.Repeat("%2Cb", maxSelectors/4)
	for line, want := range map[string]string{
		"GET fieldSelector=metadata.name%3Dx&labelSelector=a" + long:    "list",
		"GET fieldSelector=metadata.name%3Dx" + long + "&watch=%31":     "watch",
		"GET watch=1&fieldSelector=metadata.name%3Dx" + long:            "watch",
		"GET watch=0&labelSelector=a" + long:                            "list",
		"HEAD labelSelector=a" + long:                                   "list",
		"DELETE fieldSelector=metadata.name%3Dx&labelSelector=a" + long: "deletecollection",
	} {
		method, query, _ := strings.Cut(line, " ")
		all := Request{IsResourceRequest: true, Verb: want, APIVersion: "v1", Resource: "pods", Path: "/api/v1/pods"}
		check.Same(t, all, parseRequest(method, "/api/v1/pods", query), "%.40s", line)
	}
	const query = "labelSelector=a&"
	for n, want := range map[int]string{maxSelectors: "a", maxSelectors + 1: ""} {
		check.Same(t, want, parseRequest("GET", "/api/v1/pods", query+strings.Repeat("x", n-len(query))).LabelSelector, "label selector in %d bytes", n)
	}
}

// What a request line says of its request. A remote's has the time of the policy, or the shorter one that its caller
// asks for, and five seconds for its discovery. Long-running ones have none, and look complete when a drain ends
// them, unless they have an end of their own: half of a log or of a download would be all of it to its client. Only
// reads that end are sent again after a backend got them; methods are case-sensitive (RFC 9110 §9.1): what only
// looks like GET is not known to be safe. What a pod or a cluster answers through a backend goes apart: it may end
// its connection, but not another user's watch, as stories of proxy/h2/engine tell.
func TestPlanOfALine(t *testing.T) {
	w := newWorld(t, worldConfig{change: func(a *apiregistrationv1.APIService) {
		a.Annotations = map[string]string{"fairlead.dev/request-timeout": "1m", "fairlead.dev/long-running-subresources": "vnc,console"}
	}})
	const refused = "refused"
	for line, want := range map[string]string{
		"GET /widgets": "1m0s again", "GET /widgets?timeout=2s": "2s again", "GET /widgets?timeout=2m": "1m0s again",
		"GET /widgets?timeout=0s": "1m0s again", "GET /widgets?timeout=": "1m0s again", "HEAD /widgets": "1m0s again",
		"GET ": "5s again", "GET /": "5s again", "GET ?timeout=1s": "1s again",
		"GET ?timeout=32s":       "5s again", // as kubectl sends it
		"GET /widgets?timeout=x": refused, "GET /widgets?timeout=-": refused, "GET /widgets?timeout=1": refused,
		"GET /widgets?timeout=-1s":       "1m0s again", // client-go with a negative Timeout: none
		"GET /widgets?watch=1&timeout=x": "0s long", "GET /widgets?watch=1": "0s long",
		// net/url of kube-apiserver v1.37 reads none of them: it would list, without the limit.
		"GET /widgets?watch=1" + strings.Repeat("&", 9_999): "0s long", "GET /widgets?watch=1" + strings.Repeat("&", 10_000): refused,
		"GET :/api/v1/pods?limit=5" + strings.Repeat("&", 10_000): refused,
		"gET ": "5s", "OPTIONS ": "5s", "POST /widgets": "1m0s", "DELETE /widgets/a": "1m0s",
		"POST /namespaces/a/widgets/b/eviction": "1m0s", "POST /namespaces/a/widgets/b/exec": "0s long finite",
		"GET /widgets/a/log?follow=true": "0s long finite", "GET /widgets/a/log": "0s long finite",
		"GET /namespaces/a/vms/b/console": "0s long finite", "GET /namespaces/a/vms/b/serial": "1m0s again",
		"GET /widgets/a/proxy": "0s long finite apart", "GET /widgets/a/proxy/dump": "0s long finite apart",
		"GET :/api/v1/pods?timeout=1s":                     "0s again", // the local apiserver enforces it
		"GET :/api/v1/pods?watch=true":                     "0s long resumes",
		"GET :/apis/apps/v1/namespaces/a/vms/b/console":    "0s again",
		"GET :/api/v1/namespaces/a/pods/b/log?follow=true": "0s long finite",
		"GET :/debug/pprof/profile":                        "0s long finite",
		"GET :/api/v1/namespaces/x/pods/p/proxy/":          "0s long finite apart", "GET :/api/v1/proxy/namespaces/x/pods/p/": "0s long finite apart",
	} {
		method, target, _ := strings.Cut(line, " ")
		target, local := strings.CutPrefix(target, ":")
		if !local {
			target = remoteGV + target
		}
		path, query, _ := strings.Cut(target, "?")
		x := &exchange{p: w.proxy, head: of(method, path, query, with("token-of-bob"))}
		x.decision, _ = w.proxy.decision(t.Context(), x.head, nil, true)
		if got := refused; !apierrors.IsBadRequest(x.decision.Err) {
			x.upstream = w.proxy.upstream(&x.decision, false)
			plan := x.plan()
			got = plan.Deadline.String()
			long := plan.LongRunning
			for i, is := range []bool{long, long && plan.Finite, plan.Again, plan.Apart, plan.Resumes} {
				if is {
					got += []string{" long", " finite", " again", " apart", " resumes"}[i]
				}
			}
			check.Same(t, want, got, "%s", line)
			res := &http.Response{Body: io.NopCloser(strings.NewReader(""))}
			x.endCleanly(t.Context(), res)
			_, ends := res.Body.(*endingBody)
			check.Same(t, long && !plan.Finite, ends, "%s over HTTP/1.1: ends cleanly", line)
		} else {
			check.Same(t, want, got, "%s", line)
		}
	}
}
