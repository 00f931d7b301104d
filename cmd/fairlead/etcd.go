package main

import (
	"context"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"google.golang.org/grpc/test/bufconn"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/fairlead-proxy/fairlead/cmd/cli"
	"github.com/fairlead-proxy/fairlead/registry/apiservices"
)

func (o *options) validateEtcd(f *cli.Faults) {
	o.etcd.Endpoints = o.registry.etcd
	for _, e := range o.registry.etcd {
		u, err := url.Parse(e)
		switch {
		case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" ||
			u.User != nil || u.RawQuery != "" || strings.Trim(u.Path, "/") != "":
			f.Add("--registry=etcd: an element is not the URL of an etcd member, such as https://10.0.0.1:2379")
		case u.Port() == "":
			f.Add("--registry=etcd: %s has no port: etcd's own is 2379", e)
		case !strings.HasPrefix(o.registry.etcd[0], u.Scheme+":"):
			f.Add("--registry=etcd: all members must be https, or all http")
		case u.Scheme == "http" && o.etcd.CAFile+o.etcd.CertFile+o.etcd.KeyFile != "":
			f.Add("--registry=etcd: %s is plain text: "+
				"--etcd-cafile, --etcd-certfile and --etcd-keyfile would have no effect", e)
		}
	}
	f.If(o.writeStatus && o.registry.etcd != nil,
		"--write-status is for --registry=kubernetes: with etcd:, one replica writes Available anyway")
	f.If(o.writeStatus && o.registry.etcd == nil && o.registry.dir != "",
		"--write-status is for --registry=kubernetes: "+
			"the APIServices of a directory are not in the cluster, whose own aggregator writes the status of its own")
	for flag, path := range map[string]string{
		"--etcd-cafile": o.etcd.CAFile, "--etcd-certfile": o.etcd.CertFile, "--etcd-keyfile": o.etcd.KeyFile,
	} {
		f.If(path != "" && o.registry.etcd == nil, "%s needs --registry=etcd:URL,…", flag)
		f.Readable(flag, path)
	}
	f.If((o.etcd.CertFile == "") != (o.etcd.KeyFile == ""), "--etcd-certfile and --etcd-keyfile go together")
	f.If(o.cacheFile != "" && o.registry.etcd == nil, "--registry-cache-file needs --registry=etcd:URL,…")
}

func ownClient(server http.Handler) *rest.Config {
	self := &user.DefaultInfo{Name: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup}}
	return &rest.Config{
		Host: inProcess, UserAgent: "fairlead/" + version, QPS: -1, // unlimited: it only calls this process
		ContentConfig: rest.ContentConfig{
			AcceptContentTypes: runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON,
			ContentType:        runtime.ContentTypeProtobuf,
		},
		Transport: transportTo(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			server.ServeHTTP(w, r.WithContext(request.WithUser(apiservices.Own(r.Context()), self)))
		})),
	}
}

// ofEtcd gathers only the etcd metrics of k8s.io/apiserver, by their names, of all that Kubernetes' libraries register.
func ofEtcd() ([]*dto.MetricFamily, error) {
	all, err := legacyregistry.DefaultGatherer.Gather()
	other := func(f *dto.MetricFamily) bool { return !strings.HasPrefix(f.GetName(), "etcd_") }
	return slices.DeleteFunc(all, other), err
}

const inProcess = "fairlead.invalid" // the host of URLs for transportTo

// transportTo returns a transport to a handler of this process. Who does not read blocks the handler after a few KiB.
func transportTo(h http.Handler) *http.Transport {
	l := bufconn.Listen(4 << 10)
	go func() { _ = (&http.Server{Handler: h}).Serve(l) }() //nolint:gosec // only this process connects, until it ends
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) { return l.DialContext(ctx) }
	return &http.Transport{DialContext: dial, DialTLSContext: dial, DisableCompression: true}
}
