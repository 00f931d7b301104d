package main

import (
	"errors"
	"net"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/fairlead-proxy/fairlead/cmd/cli"
	"github.com/fairlead-proxy/fairlead/proxy"
	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/proxy/authz"
	"github.com/fairlead-proxy/fairlead/proxy/front"
	"github.com/fairlead-proxy/fairlead/registry/apiservices/etcd"
)

// options are the flags of serve, named as kube-apiserver's. Each has a usable zero value or a default below.
type options struct {
	cli.Shared
	// What a flag alone decides is a field of its component's Config.
	etcd  etcd.Config   // with the Endpoints of registry
	front front.Address // without what listen sets
	authn authn.Config
	authz authz.Config
	proxy proxy.Config

	kubeconfig     string
	localAPIServer []string
	serversFrom    string // where local apiservers are found
	preference     string // of local apiservers
	registryFlag   string
	registry       sources // of it, set by validate
	cacheFile      string

	adminPort     int         // beside front's; all else of front is for both
	balancers     []net.IPNet // that send the PROXY protocol
	minTLSVersion string
	cipherSuites  []string
	curves        []int32

	rejectRedirects       bool
	zone                  string
	caOverlap, staleAfter time.Duration // see makeTable and makeDocuments

	anonymousSet          bool // on the command line
	tokenFile, authConfig string
	authzMode             string

	requestTimeout            time.Duration
	streamsPerConn            int
	shutdownDelay, watchGrace time.Duration
	sendRetryAfter            bool

	egress                  string
	writeStatus, emitEvents bool
	critical                []string // APIServices
	publishEndpoints        bool
	advertiseAddress        string

	http2              bool
	accessLog          string
	accessSample       float64
	audit              auditOptions
	tracing, logFormat string
	verbosity          int
}

// flagGroups returns the flags in the groups that help shows, and in their order.
func (o *options) flagGroups() (groups cliflag.NamedFlagSets) {
	group := func(name string) *pflag.FlagSet {
		fs := groups.FlagSet(name)
		fs.SortFlags = false
		return fs
	}
	fs := group("local apiserver and registry")
	fs.StringVar(&o.kubeconfig, "kubeconfig", "", "Kubeconfig for Fairlead's own watches and reviews at the local "+
		"apiserver. Empty: the in-cluster configuration. With --registry=dir: or etcd: that does not end in "+
		",kubernetes, empty means that there is no local apiserver.")
	fs.StringSliceVar(&o.localAPIServer, "local-apiserver", nil,
		"URL of the local apiserver; repeat the flag for several. Empty: the server in the kubeconfig.")
	fs.StringVar(&o.serversFrom, "local-apiservers-from", "",
		"Where the local apiservers are found: endpointslice (the EndpointSlices of the Service default/kubernetes, "+
			"which kube-apiservers write and Fairlead must not publish), or lease (the Leases in kube-system by which "+
			"kube-apiservers name their hosts, which must resolve, at the port of the first --local-apiserver); "+
			"every 5 s. --local-apiserver or the kubeconfig names those at the start. Empty: only those.")
	fs.StringVar(&o.preference, "local-apiserver-preference", "balanced",
		"Which local apiserver a client connection gets, and keeps while that is usable: "+
			"balanced (the one with the fewest connections), or first (the first usable one).")
	fs.StringVar(&o.registryFlag, "registry", "kubernetes", "Where APIServices are read from: kubernetes, dir:PATH, "+
		"etcd:URL,… (the members of one etcd), or several in this order: etcd:URL,…,dir:PATH,kubernetes. If two "+
		"of them have an APIService of one name, the first one wins.")
	fs.StringVar(&o.etcd.CAFile, "etcd-cafile", "", "CA bundle that verifies etcd's serving certificates.")
	fs.StringVar(&o.etcd.CertFile, "etcd-certfile", "", "Client certificate for etcd.")
	fs.StringVar(&o.etcd.KeyFile, "etcd-keyfile", "", "Private key of --etcd-certfile.")
	fs.StringVar(&o.etcd.Prefix, "etcd-prefix", "/registry", "Prefix of all keys in etcd.")
	fs.StringVar(&o.cacheFile, "registry-cache-file", "", "File that keeps the last APIServices read from etcd, so "+
		"that Fairlead can start while etcd cannot be reached. No other process may use it; its mode is 0600. Empty: "+
		"no file; without etcd Fairlead starts, but is not ready.")
	fs = group("listening")
	fs.StringVar(&o.front.Host, "bind-address", "0.0.0.0", "IP address to listen on.")
	fs.IntVar(&o.front.Port, "secure-port", 6443, "Port of the front door. 0: any free port.")
	fs.BoolVar(&o.front.Shared, "permit-port-sharing", false,
		"Let another process of the same user listen on the same ports (SO_REUSEPORT), to replace this one: "+
			"new connections are this one's until it drains, then the other one's.")
	fs.IntVar(&o.adminPort, "admin-secure-port", 6444,
		"Port for health checks, metrics and profiles. 0: any free port.")
	fs.IPNetSliceVar(&o.balancers, "proxy-protocol-from", nil, "Networks of load balancers that begin each connection "+
		"to the front door with a header of the PROXY protocol, version 1 or 2: the client's address is then the "+
		"header's, and a connection without one fails. From elsewhere a header is refused. List nothing but "+
		"balancers: whoever connects from there can name any address. Empty: none.")
	o.AddFlags(group)
	o.addTrustFlags(group)
	o.addRequestFlags(group)
	fs = group("egress, status and events")
	fs.StringVar(&o.egress, "egress-selector-config-file", "",
		"EgressSelectorConfiguration whose entry \"cluster\" says how to connect to backends. Empty: directly.")
	fs.BoolVar(&o.writeStatus, "write-status", false, "Write the condition fairlead.dev/Available to APIServices. "+
		"Only the replica that holds the Lease kube-system/fairlead-status writes.")
	fs.BoolVar(&o.emitEvents, "emit-events", false, "Emit an Event when a rule begins to refuse here or, while "+
		"this replica holds the Lease kube-system/fairlead-events, when an APIService's availability changes.")
	o.addEntrypointFlags(group("entrypoint and replicas"))
	fs = group("HTTP/2, log and tracing")
	fs.BoolVar(&o.http2, "http2", true, "Offer HTTP/2 to clients. False: HTTP/1.1 only, for emergencies "+
		"(kube-apiserver calls this --disable-http2-serving).")
	o.addRecordFlags(fs)
	fs.StringVar(&o.logFormat, "logging-format", "text", "Log format: text or json.")
	fs.IntVarP(&o.verbosity, "v", "v", 2, "Log verbosity: 2 is normal, 4 and above is debug.")
	return groups
}

func (o *options) addTrustFlags(group func(string) *pflag.FlagSet) {
	fs := group("serving certificate")
	fs.StringVar(&o.minTLSVersion, "tls-min-version", "VersionTLS12",
		"Lowest TLS version that is accepted: VersionTLS12 or VersionTLS13.")
	fs.StringSliceVar(&o.cipherSuites, "tls-cipher-suites", nil, "Cipher suites for TLS 1.2. Empty: Go's defaults.")
	fs.Int32SliceVar(&o.curves, "tls-curve-preferences", nil,
		"Key exchanges that clients may use, as numbers of Go's tls.CurveID, such as 4588 (X25519MLKEM768) and 29 "+
			"(X25519). Go chooses among them in an order of its own. Empty: Go's defaults.")
	fs.StringSliceVar(&o.proxy.AllowedOrigins, "cors-allowed-origins", nil,
		"Regular expressions of origins whose pages may read answers (CORS), pinned to both ends of the host, "+
			"such as '//example\\.com(:|$)'. Give it to the local apiserver, too. Empty: no CORS.")
	fs.StringSliceVar(&o.proxy.HSTS, "strict-transport-security-directives", nil,
		"Directives of Strict-Transport-Security (HSTS), such as max-age=31536000,includeSubDomains,preload. "+
			"Give it to the local apiserver, too. Empty: no HSTS.")
	fs = group("authentication")
	headers := &o.authn.RequestHeaders
	fs.StringSliceVar(&headers.Username, "requestheader-username-headers", []string{"X-Remote-User"},
		"Headers in which a front proxy sends the user name.")
	fs.StringSliceVar(&headers.UID, "requestheader-uid-headers", nil,
		"Headers in which a front proxy sends the UID. Empty: UIDs are ignored.")
	fs.StringSliceVar(&headers.Group, "requestheader-group-headers", []string{"X-Remote-Group"},
		"Headers in which a front proxy sends the groups.")
	fs.StringSliceVar(&headers.ExtraPrefix, "requestheader-extra-headers-prefix", []string{"X-Remote-Extra-"},
		"Prefixes of the headers in which a front proxy sends extra attributes.")
	fs.BoolVar(&o.Certs.TrustConfigMap, "authentication-configmap", false, "Read each CA bundle that has no file, "+
		"and with that of front proxies the common names no flag gives and, but for --behind, headers, from ConfigMap "+
		"kube-system/extension-apiserver-authentication. kube-apiserver never removes a CA from it.")
	fs = group("proxy client certificate")
	fs.StringSliceVar(&o.authn.RefuseUsers, "impersonate-refuse-users", nil,
		"Users that are refused with 403 instead of being impersonated, whether they come by certificate, "+
			"front proxy or JWT; a trailing * matches a prefix. Empty: system:serviceaccount:*, "+
			"which covers Fairlead's own ServiceAccount; if Fairlead has another user name, add it. \"-\": none.")
	fs.StringSliceVar(&o.authn.RefuseGroups, "impersonate-refuse-groups", nil,
		"Groups whose members are refused with 403 instead of being impersonated; "+
			"--as-group may not name them either. A trailing * matches a prefix. Empty: system:masters. \"-\": none.")
	fs.StringSliceVar(&o.authn.GroupPrefixes, "impersonate-groups-prefix", nil, "Prefixes of the groups with which "+
		"users are impersonated at the local apiserver, which authorizes each group of each request. Groups of other "+
		"names, except system:*, are not passed to it; Fairlead's own decisions and extension servers see all. Do not "+
		"leave out groups by which an admission policy or an authorizer refuses. Empty: all.")
	fs = group("backend")
	fs.BoolVar(&o.rejectRedirects, "aggregator-reject-forwarding-redirect", true,
		"Answer a backend's redirects with 502. False: pass them on.")
	fs.DurationVar(&o.caOverlap, "ca-rotation-overlap", time.Minute,
		"How long the previous CA of a backend stays trusted if nothing verifies with the new one yet. 0: not at all.")
	fs.StringVar(&o.zone, "zone", "",
		"Zone of this replica's node (its label topology.kubernetes.io/zone). Endpoints that EndpointSlices hint at "+
			"for this zone come first, others while none of those is healthy; with --publish-kubernetes-endpoints "+
			"clients keep to the replicas of their zone. Empty: unknown, and zones do not count.")
	fs = group("discovery")
	fs.DurationVar(&o.staleAfter, "discovery-stale-after", 0, "How long discovery lists the resources of a failing "+
		"backend as Current. 0: as long as its APIService names the same Service.")
}

func (o *options) addRequestFlags(group func(string) *pflag.FlagSet) {
	fs := group("tokens and authorization")
	fs.BoolVar(&o.authn.Anonymous, "anonymous-auth", false,
		"Accept requests without credentials to remote APIServices, documents and pages, as user system:anonymous.")
	fs.StringVar(&o.tokenFile, "token-auth-file", "", "Static tokens for use without a local apiserver: a CSV file of "+
		"token,user,uid,\"groups\". Reloaded when it changes. Empty: none.")
	fs.StringVar(&o.authConfig, "authentication-config", "",
		"AuthenticationConfiguration (apiserver.config.k8s.io): which anonymous requests are accepted and, without a "+
			"local apiserver or with --local-identity=impersonate, which JWT issuers are trusted. Reloaded when it "+
			"changes. It is an error to configure jwt where the local apiserver verifies all tokens. Empty: none.")
	fs.DurationVar(&o.authn.TokenTTL, "authentication-token-webhook-cache-ttl", 10*time.Second,
		"How long the result of a TokenReview is cached. 0: not at all.")
	fs.StringVar(&o.authzMode, "authorization-mode", "",
		"How requests to remote APIServices are authorized: webhook (SubjectAccessReview at the local apiserver), "+
			"RBAC (ClusterRoles in --registry=dir:), backend (the extension server decides) or AlwaysAllow (with "+
			"--registry=dir: or without a local apiserver). Empty: webhook; without a local apiserver, RBAC.")
	fs.StringSliceVar(&o.authz.AllowPaths, "authorization-always-allow-paths",
		[]string{"/healthz", "/readyz", "/livez"}, "Fairlead's own paths that need no authorization.")
	fs.DurationVar(&o.authz.AllowTTL, "authorization-webhook-cache-authorized-ttl", 10*time.Second,
		"How long an allowed SubjectAccessReview is cached. 0: not at all.")
	fs.DurationVar(&o.authz.DenyTTL, "authorization-webhook-cache-unauthorized-ttl", 10*time.Second,
		"How long a denied SubjectAccessReview is cached. 0: not at all.")
	fs = group("limit and draining")
	fs.DurationVar(&o.requestTimeout, "request-timeout", time.Minute, "Time limit of a request to a remote "+
		"APIService. Watches and other long-running requests have none. 0: the default.")
	fs.IntVar(&o.front.MaxConnections, "max-connections", 0,
		"Maximum number of client connections to the front door; further ones wait in the kernel's queue. 0: three "+
			"quarters of the process's limit of open files, and of its memory at 48 KiB each if that is limited.")
	fs.IntVar(&o.streamsPerConn, "http2-max-streams-per-connection", 250,
		"Maximum number of concurrent streams on one client connection. 0: the default.")
	fs.Float64Var(&o.proxy.GoAwayChance, "goaway-chance", 0, "Probability that an HTTP/2 client is asked to reconnect "+
		"(GOAWAY) after a request, which spreads clients over replicas. At most 0.02.")
	fs.DurationVar(&o.shutdownDelay, "shutdown-delay-duration", 0,
		"How long to keep serving, not ready, after SIGTERM. With --publish-kubernetes-endpoints it is at least 2s.")
	fs.DurationVar(&o.watchGrace, "shutdown-watch-termination-grace-period", 0,
		"How long watches may continue after --shutdown-delay-duration. They end in its second half, one by one.")
	fs.BoolVar(&o.sendRetryAfter, "shutdown-send-retry-after", false,
		"During shutdown, answer new requests with 429 and Retry-After.")
	fs.IntVar(&o.proxy.MaxInFlight, "max-requests-inflight", 0,
		"Maximum number of concurrent non-mutating requests to remote APIServices. 0: no limit.")
	fs.IntVar(&o.proxy.MaxMutating, "max-mutating-requests-inflight", 0,
		"Maximum number of concurrent mutating requests to remote APIServices. 0: no limit.")
}

// validate reports every fault of the command line, one per line, before anything is opened.
func (o *options) validate() error {
	f := &cli.Faults{}
	for _, required := range [][2]string{
		{"--tls-cert-file", o.Certs.Serving.Cert}, {"--tls-private-key-file", o.Certs.Serving.Key},
		{"--proxy-client-cert-file", o.Certs.ProxyClient.Cert}, {"--proxy-client-key-file", o.Certs.ProxyClient.Key},
	} {
		f.If(required[1] == "", "%s is required", required[0])
	}
	o.Validate(f)
	f.Readable("--kubeconfig", o.kubeconfig)
	f.If(o.Certs.ClientCA != "" && o.Certs.ClientCA == o.Certs.RequestHeaderCA && len(o.Certs.AllowedNames) == 0,
		"--requestheader-allowed-names is required when --client-ca-file and --requestheader-client-ca-file are the "+
			"same: any client could name its own user")
	f.If(net.ParseIP(o.front.Host) == nil, "--bind-address %q is not an IP address", o.front.Host)
	for flag, port := range map[string]int{"--secure-port": o.front.Port, "--admin-secure-port": o.adminPort} {
		f.If(port < 0 || port > 65535, "%s %d is not a port", flag, port)
	}
	for _, name := range o.cipherSuites {
		f.If(!slices.Contains(cliflag.PreferredTLSCipherNames(), name),
			"--tls-cipher-suites: %q is not a cipher suite that is safe to use", name)
	}
	_, err := cliflag.TLSCurvePreferences(o.curves)
	f.If(err != nil, "--tls-curve-preferences: %w", err)
	f.If(o.adminPort != 0 && o.adminPort == o.front.Port,
		"--secure-port and --admin-secure-port are both %d", o.adminPort)
	o.validateChoices(f)
	return errors.Join(*f...)
}

func (o *options) validateChoices(f *cli.Faults) {
	var err error
	if o.registry, err = parseSources(o.registryFlag); err != nil {
		f.Add("%w", err)
	} else {
		o.validateEtcd(f)
	}
	alone := o.alone()
	f.If(alone && len(o.localAPIServer) > 0, "--local-apiserver needs --kubeconfig: without it, --registry=dir: or "+
		"etcd: means that there is no local apiserver")
	f.If(alone && (o.writeStatus || o.emitEvents),
		"--write-status and --emit-events need --kubeconfig: without a local apiserver there is nothing to write to")
	f.If(len(validation.IsValidLabelValue(o.zone)) > 0, "--zone %q is not the value of a label", o.zone)
	f.If(alone && o.Certs.TrustConfigMap,
		"--authentication-configmap needs --kubeconfig: the ConfigMap is the local apiserver's")
	f.If(alone && len(o.critical) > 0,
		"--critical-apiservices needs a local apiserver: replicas know of each other by its Leases")
	o.validateEntrypoint(f)
	f.Readable("--token-auth-file", o.tokenFile)
	f.Readable("--authentication-config", o.authConfig)
	f.If(o.tokenFile != "" && !alone, "--token-auth-file is for --registry=dir: or etcd: without --kubeconfig: "+
		"a local apiserver verifies tokens itself")
	o.validateIdentity(f)
	o.validateAuthorization(f)
	f.If(!(o.accessSample >= 0 && o.accessSample <= 1), "--access-log-sample %v is not between 0 and 1", o.accessSample)
	o.audit.validate(f)
	o.validateBrowsers(f)
	f.Readable("--tracing-config-file", o.tracing)
	f.If(o.preference != "balanced" && o.preference != "first",
		"--local-apiserver-preference %q is neither balanced nor first", o.preference)
	f.If(o.serversFrom != "" && o.serversFrom != fromSlice && o.serversFrom != fromLease,
		"--local-apiservers-from %q is neither endpointslice nor lease", o.serversFrom)
	f.If(alone && o.serversFrom != "", "--local-apiservers-from needs a local apiserver")
	f.If(o.serversFrom == fromSlice && o.publishEndpoints, "--local-apiservers-from=endpointslice cannot be used "+
		"with --publish-kubernetes-endpoints, which makes these EndpointSlices name Fairlead: use lease")
	f.If(o.logFormat != "text" && o.logFormat != "json", "--logging-format %q is neither text nor json", o.logFormat)
	f.If(o.minTLSVersion != "VersionTLS12" && o.minTLSVersion != "VersionTLS13",
		"--tls-min-version %q is neither VersionTLS12 nor VersionTLS13", o.minTLSVersion)
	f.If(!(o.proxy.GoAwayChance >= 0 && o.proxy.GoAwayChance <= 0.02), // NaN is neither
		"--goaway-chance %v is not between 0 and 0.02", o.proxy.GoAwayChance)
	f.If(min(o.front.MaxConnections, o.streamsPerConn, o.proxy.MaxInFlight, o.proxy.MaxMutating) < 0 ||
		o.streamsPerConn > 1<<31-1, "limits cannot be negative, nor streams above 2147483647")
	for flag, d := range map[string]time.Duration{
		"--request-timeout": o.requestTimeout, "--ca-rotation-overlap": o.caOverlap,
		"--shutdown-delay-duration": o.shutdownDelay, "--shutdown-watch-termination-grace-period": o.watchGrace,
		"--discovery-stale-after": o.staleAfter, "--authentication-token-webhook-cache-ttl": o.authn.TokenTTL,
		"--authorization-webhook-cache-authorized-ttl":   o.authz.AllowTTL,
		"--authorization-webhook-cache-unauthorized-ttl": o.authz.DenyTTL,
	} {
		f.If(d < 0 || d > 100*365*24*time.Hour, "%s %s is negative, or above 100 years", flag, d) // sums overflow
	}
}

// validateBrowsers checks as kube-apiserver does (k8s.io/apiserver/pkg/server/options/server_run_options.go).
func (o *options) validateBrowsers(f *cli.Faults) {
	for _, re := range o.proxy.AllowedOrigins { // CVE-2022-1996
		if _, err := regexp.Compile(re); err != nil {
			f.Add("--cors-allowed-origins: %w", err)
		} else if !strings.Contains(re, "^") && !strings.Contains(re, "//") || !strings.ContainsAny(re, "$:") {
			f.Add("--cors-allowed-origins %q is not pinned to both ends of the host, as by //host(:|$)", re)
		}
	}
	for _, d := range o.proxy.HSTS {
		age, ok := strings.CutPrefix(d, "max-age=")
		if d != "includeSubDomains" && d != "preload" && (!ok || strings.Contains(age, "=")) {
			f.Add("--strict-transport-security-directives: %q is not max-age=…, includeSubDomains or preload", d)
		}
	}
}
