package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"

	dto "github.com/prometheus/client_model/go"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/fairlead-proxy/fairlead/cmd/cli"
	"github.com/fairlead-proxy/fairlead/registry/apiservices"
	"github.com/fairlead-proxy/fairlead/registry/apiservices/etcd"
)

func (o *options) validateEtcd(f *cli.Faults) {
	for _, e := range o.registry.etcd {
		u, err := url.Parse(e)
		switch {
		case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" || u.User != nil || u.RawQuery != "" || strings.Trim(u.Path, "/") != "":
			f.Add("--registry=etcd: an element is not the URL of an etcd member, such as https://10.0.0.1:2379")
		case u.Port() == "":
			f.Add("--registry=etcd: %s has no port: etcd's own is 2379", e)
		case !strings.HasPrefix(o.registry.etcd[0], u.Scheme+":"):
			f.Add("--registry=etcd: all members must be https, or all http")
		case u.Scheme == "http" && o.etcd.CAFile+o.etcd.CertFile+o.etcd.KeyFile != "":
			f.Add("--registry=etcd: %s is plain text: --etcd-cafile, --etcd-certfile and --etcd-keyfile would have no effect", e)
		}
	}
	switch {
	case o.writeStatus && o.registry.etcd != nil:
		f.Add("--write-status is for --registry=kubernetes: with etcd:, one replica writes Available anyway")
	case o.writeStatus && o.registry.dir != "":
		f.Add("--write-status is for --registry=kubernetes: the APIServices of a directory are not in the cluster, whose own aggregator writes the status of its own")
	}
	for flag, path := range map[string]string{"--etcd-cafile": o.etcd.CAFile, "--etcd-certfile": o.etcd.CertFile, "--etcd-keyfile": o.etcd.KeyFile} {
		f.If(path != "" && o.registry.etcd == nil, "%s needs --registry=etcd:URL,…", flag)
		f.Readable(flag, path)
	}
	f.If((o.etcd.CertFile == "") != (o.etcd.KeyFile == ""), "--etcd-certfile and --etcd-keyfile go together")
	f.If(o.cacheFile != "" && o.registry.etcd == nil, "--registry-cache-file needs --registry=etcd:URL,…")
}

// etcdConfig returns nil if APIServices are not in etcd.
func (o *options) etcdConfig() *etcd.Config {
	if o.registry.etcd == nil {
		return nil
	}
	c := o.etcd
	c.Endpoints = o.registry.etcd
	return &c
}

// ownClient returns a client of the APIServices that this process serves, as the server itself.
func ownClient(server *apiservices.Server) *rest.Config {
	ask := inProcess{server}
	return &rest.Config{
		Host: "https://fairlead.invalid", UserAgent: "fairlead/" + version, QPS: -1, // unlimited: it only calls this process
		ContentConfig: rest.ContentConfig{AcceptContentTypes: runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON, ContentType: runtime.ContentTypeProtobuf},
		Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
			self := &user.DefaultInfo{Name: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup}}
			return ask.fetch(request.WithUser(apiservices.Own(r.Context()), self), r)
		}),
	}
}

// ofEtcd gathers only the etcd metrics of k8s.io/apiserver, by kube-apiserver's names, out of all
// that Kubernetes' libraries register.
type ofEtcd struct{}

// Gather implements prometheus.Gatherer.
func (ofEtcd) Gather() ([]*dto.MetricFamily, error) {
	all, err := legacyregistry.DefaultGatherer.Gather()
	return slices.DeleteFunc(all, func(f *dto.MetricFamily) bool { return !strings.HasPrefix(f.GetName(), "etcd_") }), err
}

// inProcess sends requests to a handler of this process as if it were a server. It is an
// http.RoundTripper. Responses stream, and a reader that does not read blocks the handler.
type inProcess struct{ http.Handler }

func (h inProcess) fetch(ctx context.Context, r *http.Request) (*http.Response, error) {
	return h.RoundTrip(r.WithContext(ctx))
}

// RoundTrip implements http.RoundTripper.
func (h inProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(r.Context())
	r = r.Clone(ctx)
	r.RequestURI = r.URL.RequestURI()
	if r.Body == nil {
		r.Body = http.NoBody // a server's request always has one
	}
	body, to := io.Pipe()
	w := &streamed{header: make(http.Header), to: to, begun: make(chan struct{})}
	res := &http.Response{ContentLength: -1, Request: r, Body: &unread{body, cancel}}
	go func() { // ends with the handler, which ends when the body is closed
		defer func() {
			if cause := recover(); cause != nil {
				_ = to.CloseWithError(fmt.Errorf("asking this process: %v", cause))
			}
			w.WriteHeader(http.StatusOK) // for a handler that has written nothing
			_ = to.Close()
		}()
		h.ServeHTTP(w, r)
	}()
	select {
	case <-w.begun:
	case <-ctx.Done():
		_ = res.Body.Close()
		return nil, ctx.Err()
	}
	res.Status, res.StatusCode, res.Header = http.StatusText(w.status), w.status, w.sent
	return res, nil
}

// unread is a response body. Close ends the handler.
type unread struct {
	*io.PipeReader
	cancel context.CancelFunc
}

func (b *unread) Close() error {
	b.cancel()
	return b.PipeReader.Close()
}

// streamed is the http.ResponseWriter of a streamed response.
type streamed struct {
	header, sent http.Header
	status       int
	to           *io.PipeWriter
	begun        chan struct{} // closed with the head
	once         sync.Once
}

func (w *streamed) Header() http.Header { return w.header }

// WriteHeader keeps the first final status.
func (w *streamed) WriteHeader(code int) {
	if code < http.StatusOK {
		return
	}
	w.once.Do(func() {
		w.status, w.sent = code, w.header.Clone()
		close(w.begun)
	})
}

func (w *streamed) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.to.Write(b)
}

// Flush implements http.Flusher: nothing is held back.
func (w *streamed) Flush() { w.WriteHeader(http.StatusOK) }
