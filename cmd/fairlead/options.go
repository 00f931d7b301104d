package main

import (
	"errors"
	"net"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/fairlead-proxy/fairlead/cmd/cli"
)

// options are the flags of serve, named as in kube-apiserver where it has the same. Each has a
// usable zero value or a default below.
type options struct {
	kubeconfig     string
	localAPIServer []string
	serversFrom    string // where local apiservers are found
	preference     string // of local apiservers
	registry       sources
	etcd           etcdOptions

	bindAddress string
	securePort  int
	adminPort   int

	tlsCert, tlsKey string
	sniPairs        []string
	minTLSVersion   string
	cipherSuites    []string

	clientCA            string
	requestHeaderCA     string
	allowedNames        []string
	usernameHeaders     []string
	uidHeaders          []string
	groupHeaders        []string
	extraHeaderPrefixes []string
	authConfigMap       bool

	proxyCert, proxyKey string

	localIdentity string
	refuseUsers   []string
	refuseGroups  []string

	endpointRouting bool
	allowLoopback   bool
	allowURLs       bool
	rejectRedirects bool
	protectedGroups []string
	caOverlap       time.Duration
	staleAfter      time.Duration

	anonymous       bool
	anonymousSet    bool // on the command line
	tokenFile       string
	authConfig      string
	tokenTTL        time.Duration
	authzMode       string
	alwaysAllow     []string
	authorizedTTL   time.Duration
	unauthorizedTTL time.Duration

	requestTimeout time.Duration
	maxConnections int
	streamsPerConn int
	goawayChance   float64
	shutdownDelay  time.Duration
	watchGrace     time.Duration
	sendRetryAfter bool
	maxInFlight    int
	maxMutating    int

	egress           string
	writeStatus      bool
	emitEvents       bool
	publishEndpoints bool
	advertiseAddress string

	http2     bool
	access    accessOptions
	audit     auditOptions
	browsers  browserOptions
	tracing   string
	logFormat string
	verbosity int
}

// flagGroups returns the flags in the groups that help shows.
func (o *options) flagGroups() (groups cliflag.NamedFlagSets) {
	group := func(name string) *pflag.FlagSet {
		fs := groups.FlagSet(name)
		fs.SortFlags = false
		return fs
	}
	fs := group("local apiserver and registry")
	fs.StringVar(&o.kubeconfig, "kubeconfig", "", "Kubeconfig for Fairlead's own watches and reviews at the local apiserver. Empty: the in-cluster configuration. With --registry=dir: or etcd: that does not end in ,kubernetes, empty means that there is no local apiserver.")
	fs.StringSliceVar(&o.localAPIServer, "local-apiserver", nil, "URL of the local apiserver; repeat the flag for several. Empty: the server in the kubeconfig.")
	fs.StringVar(&o.serversFrom, "local-apiservers-from", "", "Where the local apiservers are found: endpointslice (the EndpointSlices of the Service default/kubernetes, which kube-apiservers write and Fairlead must not publish; every 5 s). --local-apiserver or the kubeconfig names those at the start. Empty: only those.")
	fs.StringVar(&o.preference, "local-apiserver-preference", "balanced", "Which local apiserver a client connection gets, and keeps while that is usable: balanced (the one with the fewest connections), or first (the first usable one).")
	o.registry.text = "kubernetes"
	fs.Var(&o.registry, "registry", "Where APIServices are read from: kubernetes, dir:PATH, etcd:URL,… (the members of one etcd), or several in this order: etcd:URL,…,dir:PATH,kubernetes. If two of them have an APIService of one name, the first one wins.")
	o.etcd.addFlags(fs)
	fs = group("listening")
	fs.StringVar(&o.bindAddress, "bind-address", "0.0.0.0", "IP address to listen on.")
	fs.IntVar(&o.securePort, "secure-port", 6443, "Port of the front door. 0: any free port.")
	fs.IntVar(&o.adminPort, "admin-secure-port", 6444, "Port for health checks, metrics and profiles. 0: any free port.")
	fs = group("serving certificate")
	fs.StringVar(&o.tlsCert, "tls-cert-file", "", "Serving certificate and its chain, in PEM. Reloaded when it changes. Required.")
	fs.StringVar(&o.tlsKey, "tls-private-key-file", "", "Private key of --tls-cert-file. Required.")
	fs.StringArrayVar(&o.sniPairs, "tls-sni-cert-key", nil, "Another serving certificate, as certfile,keyfile[:name,…]; repeat the flag for several.")
	fs.StringVar(&o.minTLSVersion, "tls-min-version", "VersionTLS12", "Lowest TLS version that is accepted: VersionTLS12 or VersionTLS13.")
	fs.StringSliceVar(&o.cipherSuites, "tls-cipher-suites", nil, "Cipher suites for TLS 1.2. Empty: Go's defaults.")
	fs = group("authentication")
	fs.StringVar(&o.clientCA, "client-ca-file", "", "CA bundle that verifies client certificates. Empty: client certificates are not accepted.")
	o.addFrontProxyFlags(fs)
	fs.BoolVar(&o.authConfigMap, "authentication-configmap", false, "Read both CA bundles from the ConfigMap kube-system/extension-apiserver-authentication. kube-apiserver never removes a CA from it.")
	fs = group("proxy client certificate")
	fs.StringVar(&o.proxyCert, "proxy-client-cert-file", "", "Client certificate that identifies Fairlead as the front proxy, to backends and (unless --local-identity=impersonate) to the local apiserver. Reloaded when it changes. Required.")
	fs.StringVar(&o.proxyKey, "proxy-client-key-file", "", "Private key of --proxy-client-cert-file. Required.")
	o.addIdentityFlags(fs)
	fs = group("backend")
	fs.BoolVar(&o.endpointRouting, "enable-aggregator-routing", true, "Send requests to the endpoints of a Service. False: to its ClusterIP.")
	fs.BoolVar(&o.rejectRedirects, "aggregator-reject-forwarding-redirect", true, "Answer a backend's redirects with 502. False: pass them on.")
	fs.BoolVar(&o.allowLoopback, "allow-loopback-backends", false, "Allow backends on loopback addresses, and host names that only an egress proxy can resolve. They receive Fairlead's client certificate.")
	fs.BoolVar(&o.allowURLs, "allow-url-backends", false, "Allow APIServices to name their backend by URL (annotation fairlead.dev/url). Whoever can write APIServices then decides which host receives Fairlead's client certificate. Always on with --registry=dir: and etcd:.")
	fs.StringSliceVar(&o.protectedGroups, "protected-groups", nil, "API groups that no remote APIService may serve. Empty: the groups built into Kubernetes. \"-\": none.")
	fs.DurationVar(&o.caOverlap, "ca-rotation-overlap", time.Minute, "How long the previous CA of a backend stays trusted if nothing verifies with the new one yet. 0: not at all.")
	fs = group("discovery")
	fs.DurationVar(&o.staleAfter, "discovery-stale-after", 0, "How long discovery lists the resources of a failing backend as Current. 0: as long as its APIService names the same Service.")
	fs = group("tokens and authorization")
	fs.BoolVar(&o.anonymous, "anonymous-auth", false, "Accept requests without credentials to remote APIServices, as user system:anonymous.")
	fs.StringVar(&o.tokenFile, "token-auth-file", "", "Static tokens for use without a local apiserver: a CSV file of token,user,uid,\"groups\". Reloaded when it changes. Empty: none.")
	fs.StringVar(&o.authConfig, "authentication-config", "", "AuthenticationConfiguration (apiserver.config.k8s.io): which anonymous requests are accepted and, without a local apiserver or with --local-identity=impersonate, which JWT issuers are trusted. Reloaded when it changes. It is an error to configure jwt where the local apiserver verifies all tokens. Empty: none.")
	fs.DurationVar(&o.tokenTTL, "authentication-token-webhook-cache-ttl", 10*time.Second, "How long the result of a TokenReview is cached. 0: not at all.")
	fs.StringVar(&o.authzMode, "authorization-mode", "", "How requests to remote APIServices are authorized: webhook (SubjectAccessReview at the local apiserver), RBAC (ClusterRoles in --registry=dir:), backend (the extension server decides) or AlwaysAllow (with --registry=dir: only). Empty: webhook; without a local apiserver, RBAC.")
	fs.StringSliceVar(&o.alwaysAllow, "authorization-always-allow-paths", []string{"/healthz", "/readyz", "/livez"}, "Fairlead's own paths that need no authorization.")
	fs.DurationVar(&o.authorizedTTL, "authorization-webhook-cache-authorized-ttl", 10*time.Second, "How long an allowed SubjectAccessReview is cached. 0: not at all.")
	fs.DurationVar(&o.unauthorizedTTL, "authorization-webhook-cache-unauthorized-ttl", 10*time.Second, "How long a denied SubjectAccessReview is cached. 0: not at all.")
	o.browsers.addFlags(group("serving certificate"))
	fs = group("limit and draining")
	fs.DurationVar(&o.requestTimeout, "request-timeout", time.Minute, "Time limit of a request to a remote APIService. Watches and other long-running requests have none. 0: the default.")
	fs.IntVar(&o.maxConnections, "max-connections", 0, "Maximum number of client connections to the front door; further ones wait in the kernel's queue. 0: three quarters of the process's limit of open files.")
	fs.IntVar(&o.streamsPerConn, "http2-max-streams-per-connection", 250, "Maximum number of concurrent streams on one client connection. 0: the default.")
	fs.Float64Var(&o.goawayChance, "goaway-chance", 0, "Probability that an HTTP/2 client is asked to reconnect (GOAWAY) after a request, which spreads clients over replicas. At most 0.02.")
	fs.DurationVar(&o.shutdownDelay, "shutdown-delay-duration", 0, "How long to keep serving, not ready, after SIGTERM.")
	fs.DurationVar(&o.watchGrace, "shutdown-watch-termination-grace-period", 0, "How long watches may continue after --shutdown-delay-duration.")
	fs.BoolVar(&o.sendRetryAfter, "shutdown-send-retry-after", false, "During shutdown, answer new requests with 429 and Retry-After.")
	fs.IntVar(&o.maxInFlight, "max-requests-inflight", 0, "Maximum number of concurrent non-mutating requests to remote APIServices. 0: no limit.")
	fs.IntVar(&o.maxMutating, "max-mutating-requests-inflight", 0, "Maximum number of concurrent mutating requests to remote APIServices. 0: no limit.")
	fs = group("egress, status and events")
	fs.StringVar(&o.egress, "egress-selector-config-file", "", "EgressSelectorConfiguration whose entry \"cluster\" says how to connect to backends. Empty: directly.")
	fs.BoolVar(&o.writeStatus, "write-status", false, "Write the condition fairlead.dev/Available to APIServices. Only the replica that holds the Lease kube-system/fairlead-status writes.")
	fs.BoolVar(&o.emitEvents, "emit-events", false, "Emit an Event on an APIService when its availability changes. Only the replica that holds the Lease kube-system/fairlead-events does so.")
	fs = group("entrypoint")
	fs.BoolVar(&o.publishEndpoints, "publish-kubernetes-endpoints", false, "Add this replica, while it is ready, to the endpoints of the Service default/kubernetes. kube-apiserver must run with --endpoint-reconciler-type=none.")
	fs.StringVar(&o.advertiseAddress, "advertise-address", "", "Address at which clients in the cluster reach this replica, for --publish-kubernetes-endpoints. Empty: the environment variable POD_IP, or else --bind-address.")
	fs = group("HTTP/2, log and tracing")
	fs.BoolVar(&o.http2, "http2", true, "Offer HTTP/2 to clients. False: HTTP/1.1 only, for emergencies (kube-apiserver calls this --disable-http2-serving).")
	o.access.addFlags(fs)
	o.audit.addFlags(fs)
	fs.StringVar(&o.tracing, "tracing-config-file", "", "TracingConfiguration (apiserver.config.k8s.io): where spans are sent, and the sampling rate. Empty: no tracing.")
	fs.StringVar(&o.logFormat, "logging-format", "text", "Log format: text or json.")
	fs.IntVarP(&o.verbosity, "v", "v", 2, "Log verbosity: 2 is normal, 4 and above is debug.")
	return groups
}

// addFrontProxyFlags adds the flags about front proxies that connect to Fairlead.
func (o *options) addFrontProxyFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.requestHeaderCA, "requestheader-client-ca-file", "", "CA bundle that verifies front proxies, whose headers name the user. Empty: no front proxy is trusted.")
	fs.StringSliceVar(&o.allowedNames, "requestheader-allowed-names", nil, "Common names of trusted front proxies. Empty: any certificate of --requestheader-client-ca-file.")
	fs.StringSliceVar(&o.usernameHeaders, "requestheader-username-headers", []string{"X-Remote-User"}, "Headers in which a front proxy sends the user name.")
	fs.StringSliceVar(&o.uidHeaders, "requestheader-uid-headers", nil, "Headers in which a front proxy sends the UID. Empty: UIDs are ignored.")
	fs.StringSliceVar(&o.groupHeaders, "requestheader-group-headers", []string{"X-Remote-Group"}, "Headers in which a front proxy sends the groups.")
	fs.StringSliceVar(&o.extraHeaderPrefixes, "requestheader-extra-headers-prefix", []string{"X-Remote-Extra-"}, "Prefixes of the headers in which a front proxy sends extra attributes.")
}

// validate reports every fault of the command line, one per line, before anything is opened.
func (o *options) validate() error {
	f := &cli.Faults{}
	for _, required := range [][2]string{
		{"--tls-cert-file", o.tlsCert}, {"--tls-private-key-file", o.tlsKey},
		{"--proxy-client-cert-file", o.proxyCert}, {"--proxy-client-key-file", o.proxyKey},
	} {
		f.If(required[1] == "", "%s is required", required[0])
		f.Readable(required[0], required[1])
	}
	for flag, path := range map[string]string{"--client-ca-file": o.clientCA, "--requestheader-client-ca-file": o.requestHeaderCA, "--kubeconfig": o.kubeconfig} {
		f.Readable(flag, path)
	}
	f.If(o.clientCA != "" && o.clientCA == o.requestHeaderCA && len(o.allowedNames) == 0,
		"--requestheader-allowed-names is required when --client-ca-file and --requestheader-client-ca-file are the same: any client could name its own user")
	f.If(net.ParseIP(o.bindAddress) == nil, "--bind-address %q is not an IP address", o.bindAddress)
	for flag, port := range map[string]int{"--secure-port": o.securePort, "--admin-secure-port": o.adminPort} {
		f.If(port < 0 || port > 65535, "%s %d is not a port", flag, port)
	}
	f.CheckKeyPairs(o.sniPairs)
	for _, name := range o.cipherSuites {
		f.If(!slices.Contains(cliflag.PreferredTLSCipherNames(), name),
			"--tls-cipher-suites: %q is not a cipher suite that is safe to use", name)
	}
	f.If(o.securePort != 0 && o.securePort == o.adminPort,
		"--secure-port and --admin-secure-port are both %d", o.securePort)
	o.validateChoices(f)
	return errors.Join(*f...)
}

func (o *options) validateChoices(f *cli.Faults) {
	if err := o.registry.fault; err != nil {
		f.Add("%w", err)
	} else {
		o.validateEtcd(f)
	}
	o.validateAlone(f)
	o.validateEntrypoint(f)
	o.validateTokens(f)
	o.validateIdentity(f)
	o.validateAuthorization(f)
	o.access.validate(f)
	o.audit.validate(f)
	o.browsers.validate(f)
	f.Readable("--tracing-config-file", o.tracing)
	f.If(o.preference != "balanced" && o.preference != "first",
		"--local-apiserver-preference %q is neither balanced nor first", o.preference)
	f.If(o.serversFrom != "" && o.serversFrom != "endpointslice", "--local-apiservers-from %q is not endpointslice", o.serversFrom)
	f.If(o.serversFrom != "" && o.alone(), "--local-apiservers-from needs a local apiserver")
	f.If(o.serversFrom != "" && o.publishEndpoints, "--local-apiservers-from=endpointslice cannot be used with --publish-kubernetes-endpoints, which makes these EndpointSlices name Fairlead: name each with --local-apiserver")
	f.If(o.logFormat != "text" && o.logFormat != "json", "--logging-format %q is neither text nor json", o.logFormat)
	f.If(o.minTLSVersion != "VersionTLS12" && o.minTLSVersion != "VersionTLS13",
		"--tls-min-version %q is neither VersionTLS12 nor VersionTLS13", o.minTLSVersion)
	f.If(o.goawayChance < 0 || o.goawayChance > 0.02, "--goaway-chance %v is not between 0 and 0.02", o.goawayChance)
	f.If(o.maxConnections < 0 || o.streamsPerConn < 0 || o.maxInFlight < 0 || o.maxMutating < 0,
		"limits cannot be negative")
	for flag, d := range map[string]time.Duration{
		"--request-timeout": o.requestTimeout, "--shutdown-delay-duration": o.shutdownDelay, "--ca-rotation-overlap": o.caOverlap, "--discovery-stale-after": o.staleAfter,
		"--shutdown-watch-termination-grace-period": o.watchGrace, "--authentication-token-webhook-cache-ttl": o.tokenTTL,
		"--authorization-webhook-cache-authorized-ttl": o.authorizedTTL, "--authorization-webhook-cache-unauthorized-ttl": o.unauthorizedTTL,
	} {
		f.If(d < 0, "%s %s is negative", flag, d)
	}
}

// browserOptions are kube-apiserver's flags for browsers, with its checks
// (k8s.io/apiserver/pkg/server/options/server_run_options.go).
type browserOptions struct{ origins, hsts []string }

func (o *browserOptions) addFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&o.origins, "cors-allowed-origins", nil, "Regular expressions of origins whose pages may read answers (CORS), pinned to both ends of the host, such as '//example\\.com(:|$)'. Give it to the local apiserver, too. Empty: no CORS.")
	fs.StringSliceVar(&o.hsts, "strict-transport-security-directives", nil, "Directives of Strict-Transport-Security (HSTS), such as max-age=31536000,includeSubDomains,preload. Give it to the local apiserver, too. Empty: no HSTS.")
}

func (o *browserOptions) validate(f *cli.Faults) {
	for _, origin := range o.origins {
		if _, err := regexp.Compile(origin); err != nil {
			f.Add("--cors-allowed-origins: %w", err)
		} else if !strings.Contains(origin, "^") && !strings.Contains(origin, "//") || !strings.ContainsAny(origin, "$:") { // CVE-2022-1996
			f.Add("--cors-allowed-origins %q is not pinned to both ends of the host, as by //host(:|$)", origin)
		}
	}
	for _, d := range o.hsts {
		if age, ok := strings.CutPrefix(d, "max-age="); d != "includeSubDomains" && d != "preload" && (!ok || strings.Contains(age, "=")) {
			f.Add("--strict-transport-security-directives: %q is not max-age=…, includeSubDomains or preload", d)
		}
	}
}
