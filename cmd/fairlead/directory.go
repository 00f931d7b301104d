package main

import (
	"fmt"
	"net/http"
	"runtime/debug"
	"strings"

	apiversion "k8s.io/apimachinery/pkg/version"

	"github.com/fairlead-proxy/fairlead/health"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/directory/apiservices"
)

// directory is the PATH of --registry=dir:PATH. Empty: APIServices come from the local apiserver.
func (o *options) directory() string {
	path, ok := strings.CutPrefix(o.registry, "dir:")
	if !ok {
		return ""
	}
	return path
}

// alone reports whether there is no local apiserver: a directory, and no kubeconfig. A pod's own credentials are not looked for then.
func (o *options) alone() bool { return o.directory() != "" && o.kubeconfig == "" }

// validateAlone finds flags that only make sense with a local apiserver, or only without one.
func (o *options) validateAlone(fault func(string, ...any)) {
	if strings.HasPrefix(o.registry, "dir:") && o.directory() == "" {
		fault("--registry %q names no directory", o.registry)
	}
	if !o.alone() {
		return
	}
	if len(o.localAPIServer) > 0 {
		fault("--local-apiserver needs --kubeconfig: with --registry=dir: and without it there is no local apiserver")
	}
	if o.writeStatus || o.emitEvents {
		fault("--write-status and --emit-events need --kubeconfig: without a local apiserver there is nobody to be told")
	}
	if o.authConfigMap {
		fault("--authentication-configmap needs --kubeconfig: the ConfigMap is the local apiserver's")
	}
}

// makeAPIServices makes what serves apiregistration.k8s.io from the table, and all that a local apiserver would be asked for when there is none.
func (d *door) makeAPIServices() (err error) {
	if d.o.directory() == "" {
		return nil
	}
	d.apiServices, err = apiservices.New(apiservices.Config{Table: d.registry.Table, Version: kubernetesVersion()})
	return err
}

// ownPages are what Fairlead answers itself on the main port.
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

// localServers are the local apiservers with their health.
func (d *door) localServers() []registry.Endpoint {
	if d.local == nil {
		return nil
	}
	return d.local.Servers()
}

// health answers the health paths of the main port: for this process first, then for the local apiserver, if there is one.
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

// kubernetesVersion is what /version says without a local apiserver: the release of Kubernetes whose libraries serve APIServices here. Clients choose
// behaviour by its minor number.
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
