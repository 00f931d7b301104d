package main

import (
	"context"
	"fmt"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"

	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/fairlead-proxy/fairlead/health"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/apiservices"
)

// andCluster ends a --registry of several sources: the cluster's own APIServices are used too,
// unless another source has one of the same name.
const andCluster = ",kubernetes"

func (o *options) withCluster() bool { return strings.HasSuffix(o.registry, andCluster) }

// directory returns the PATH of --registry=dir:PATH, or of etcd:URL,…,dir:PATH. It returns "" if
// there is none.
func (o *options) directory() string {
	from := strings.TrimSuffix(o.registry, andCluster)
	path, ok := strings.CutPrefix(from, "dir:")
	if !ok && o.endpoints() != nil {
		_, path, ok = strings.Cut(from, ",dir:")
	}
	if !ok {
		return ""
	}
	return path
}

// alone reports whether there is no local apiserver: APIServices come from a directory or etcd
// only, and there is no kubeconfig. A pod's own credentials are not used then.
func (o *options) alone() bool {
	return (o.directory() != "" || o.endpoints() != nil) && o.kubeconfig == "" && !o.withCluster()
}

// validateRegistry reports whether the sources are known, unique, and in order of precedence.
func (o *options) validateRegistry(fault func(string, ...any)) bool {
	sources, last := []string{"etcd", "dir", "kubernetes"}, -1
	for element := range strings.SplitSeq(o.registry, ",") {
		name, _, prefixed := strings.Cut(element, ":")
		at := slices.Index(sources, name)
		switch {
		case at < 0 || prefixed == (name == "kubernetes"): // a URL, or part of a path
			continue
		case at == last:
			fault("--registry %q names %s twice", o.registry, name)
			return false
		case at < last:
			fault("--registry %q: sources must be in order of precedence: etcd:URL,…, dir:PATH, kubernetes", o.registry)
			return false
		}
		last = at
	}
	switch {
	case strings.HasSuffix(","+strings.TrimSuffix(o.registry, andCluster), ",dir:"):
		fault("--registry %q names no directory", o.registry)
	case o.registry != "kubernetes" && o.directory() == "" && o.endpoints() == nil:
		fault("--registry %q is neither kubernetes, dir:PATH nor etcd:URL,…, nor a list of them", o.registry)
	}
	return true
}

// validateAlone reports flags that make no sense without a local apiserver.
func (o *options) validateAlone(fault func(string, ...any)) {
	if !o.alone() {
		return
	}
	if len(o.localAPIServer) > 0 {
		fault("--local-apiserver needs --kubeconfig: without it, --registry=dir: or etcd: means that there is no local apiserver")
	}
	if o.writeStatus || o.emitEvents {
		fault("--write-status and --emit-events need --kubeconfig: without a local apiserver there is nothing to write to")
	}
	if o.authConfigMap {
		fault("--authentication-configmap needs --kubeconfig: the ConfigMap is the local apiserver's")
	}
}

// makeAPIServices makes the server of apiregistration.k8s.io, from etcd or the table. Without a
// local apiserver it also serves what that would.
func (d *door) makeAPIServices(o *registry.Options) (err error) {
	c := apiservices.Config{
		Etcd: d.o.etcdConfig(), Protects: o.Protects, Version: kubernetesVersion(),
		Authorize: func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
			return d.may.Authorize(ctx, a) // set before the first request
		},
	}
	if c.Etcd == nil {
		// The table is set before the first request, too.
		c.Table = func() *registry.Table { return d.registry.Table() }
	}
	if c.Etcd != nil || d.o.directory() != "" {
		d.apiServices, err = apiservices.New(c)
	}
	return err
}

// ownPages returns the handler of what Fairlead itself serves on the main port.
func (d *door) ownPages() http.Handler {
	if d.apiServices == nil {
		return d.pages
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/fairlead" || strings.HasPrefix(r.URL.Path, "/fairlead/") {
			d.pages.ServeHTTP(w, r)
			return
		}
		d.apiServices.ServeHTTP(w, r)
	})
}

func (d *door) localServers() []registry.Endpoint {
	if d.local == nil {
		return nil
	}
	return d.local.Servers()
}

// health returns the handler of the main port's health paths: for this process first, then for the
// local apiserver, if there is one.
func (d *door) health(local http.Handler) http.Handler {
	if local != nil {
		return &health.Relay{Ready: d.ready, Local: local}
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/livez") {
			d.live.ServeHTTP(w, r)
			return
		}
		d.ready.ServeHTTP(w, r)
	})
}

// kubernetesVersion returns what /version says without a local apiserver: the Kubernetes release
// whose libraries serve APIServices here. Clients choose behaviour by its minor version.
func kubernetesVersion() *apiversion.Info {
	info := &apiversion.Info{Major: "1", Minor: "37", GitVersion: "v1.37.0"}
	build, ok := debug.ReadBuildInfo()
	if !ok {
		return info
	}
	info.GoVersion = build.GoVersion
	for _, m := range build.Deps {
		var minor, patch int
		if m.Path != "k8s.io/apiserver" {
			continue
		}
		// The libraries of Kubernetes 1.x.y are v0.x.y.
		if _, err := fmt.Sscanf(m.Version, "v0.%d.%d", &minor, &patch); err == nil {
			info.Minor, info.GitVersion = fmt.Sprint(minor), fmt.Sprintf("v1.%d.%d+fairlead", minor, patch)
		}
	}
	return info
}
