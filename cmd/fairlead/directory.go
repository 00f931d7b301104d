package main

import (
	"context"
	"fmt"
	"net/http"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	baseversion "k8s.io/component-base/version"

	"github.com/fairlead-proxy/fairlead/cmd/answer"
	"github.com/fairlead-proxy/fairlead/health"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/apiservices"
)

// sources are where APIServices are read from. Of two of one name the first in the order of the fields wins.
type sources struct {
	etcd    []string // the URLs of its members. Nil means none
	dir     string   // a directory. Empty means none
	cluster bool     // besides one of the others, the cluster's own
}

// parseSources returns those that --registry names. On an error they are those before the fault.
func parseSources(text string) (s sources, err error) {
	const etcd, dir, kubernetes = 0, 1, 2
	last := -1
	for element := range strings.SplitSeq(text, ",") {
		name, rest, prefixed := strings.Cut(element, ":")
		at := slices.Index([]string{"etcd", "dir", "kubernetes"}, name)
		if at < 0 || prefixed == (at == kubernetes) { // another URL, or part of a path
			switch last {
			case etcd:
				s.etcd = append(s.etcd, element)
			case dir:
				s.dir += "," + element
			default:
				return s, fmt.Errorf("--registry %q is neither kubernetes, dir:PATH nor etcd:URL,…, "+
					"nor a list of them", text)
			}
			continue
		}
		switch {
		case at == last:
			return s, fmt.Errorf("--registry %q names %s twice", text, name)
		case at < last:
			return s, fmt.Errorf("--registry %q: sources must be in order of precedence: "+
				"etcd:URL,…, dir:PATH, kubernetes", text)
		case at == etcd:
			s.etcd = []string{rest}
		case at == dir && rest == "":
			return s, fmt.Errorf("--registry %q names no directory", text)
		case at == dir:
			s.dir = rest
		default:
			s.cluster = last >= 0
		}
		last = at
	}
	return s, nil
}

// alone reports whether there is no local apiserver: only a directory or etcd, and no kubeconfig, not even a pod's.
func (o *options) alone() bool {
	return (o.registry.dir != "" || o.registry.etcd != nil) && o.kubeconfig == "" && !o.registry.cluster
}

// makeAPIServices makes the server of apiregistration.k8s.io and, without a local apiserver, of what that would serve.
func (s *server) makeAPIServices(o *registry.Options) (err error) {
	c := apiservices.Config{
		Tables: s, Options: o, Version: kubernetesVersion(),
		Authorizer: authorizer.AuthorizerFunc(
			func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
				return s.may.Authorize(ctx, a) // set before the first request, as is the table
			}),
	}
	if s.o.registry.etcd != nil {
		c.Etcd = &s.o.etcd
	} else if s.o.registry.dir == "" {
		return nil
	}
	s.apiServices, err = apiservices.New(c)
	s.loops["apiservices"] = s.apiServices.Run
	return err
}

func (s *server) servePages(w http.ResponseWriter, r *http.Request) {
	if s.apiServices == nil || r.URL.Path == answer.Below || strings.HasPrefix(r.URL.Path, answer.Below+"/") {
		s.pages.ServeHTTP(w, r)
		return
	}
	s.apiServices.ServeHTTP(w, r)
}

// health returns the handler of the main port's health paths: this process's, then the local apiserver's.
func (s *server) health(local http.Handler) http.Handler {
	if local != nil {
		return &health.Relay{Ready: s.ready, Local: local}
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		checks := s.ready
		if strings.HasPrefix(r.URL.Path, "/livez") {
			checks = s.live
		}
		checks.ServeHTTP(w, r)
	})
}

// kubernetesVersion is that of the libraries that serve APIServices here: clients choose behaviour by the minor one.
func kubernetesVersion() *apiversion.Info {
	const release = baseversion.DefaultKubeBinaryVersion // without the patch level
	major, minor, _ := strings.Cut(release, ".")
	info := &apiversion.Info{Major: major, Minor: minor, GoVersion: runtime.Version()}
	info.GitVersion = "v" + release + ".0+fairlead"
	if build, ok := debug.ReadBuildInfo(); ok {
		for _, m := range build.Deps {
			if m.Path == "k8s.io/apiserver" { // the libraries of Kubernetes 1.x.y are v0.x.y
				info.GitVersion = "v" + major + strings.TrimPrefix(m.Version, "v0") + "+fairlead"
			}
		}
	}
	return info
}
