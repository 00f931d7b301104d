package main

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// options are the flags of serve, spelled as in kube-apiserver wherever it has them. Each has a usable zero value or a default below.
type options struct {
	kubeconfig     string
	localAPIServer []string
	registry       string

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
	tracing   string
	logFormat string
	verbosity int
}

func (o *options) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.kubeconfig, "kubeconfig", "", "Kubeconfig of the local apiserver, for Fairlead's own watches and reviews. Empty: in-cluster configuration; with --registry=dir: there is no local apiserver.")
	fs.StringSliceVar(&o.localAPIServer, "local-apiserver", nil, "URL of the local apiserver; may repeat. Empty: the kubeconfig's server.")
	fs.StringVar(&o.registry, "registry", "kubernetes", "Where APIServices come from: kubernetes, or dir:PATH.")

	fs.StringVar(&o.bindAddress, "bind-address", "0.0.0.0", "Address to listen on.")
	fs.IntVar(&o.securePort, "secure-port", 6443, "Port of the front door. 0 picks a free one.")
	fs.IntVar(&o.adminPort, "admin-secure-port", 6444, "Port of Fairlead's own pages: health, metrics, profiles. 0 picks a free one.")

	fs.StringVar(&o.tlsCert, "tls-cert-file", "", "Serving certificate (PEM, chain). Reloaded when it changes.")
	fs.StringVar(&o.tlsKey, "tls-private-key-file", "", "Key of the serving certificate.")
	fs.StringArrayVar(&o.sniPairs, "tls-sni-cert-key", nil, "A further serving pair, certfile,keyfile[:name,…]; may repeat.")
	fs.StringVar(&o.minTLSVersion, "tls-min-version", "VersionTLS12", "Lowest TLS version: VersionTLS12 or VersionTLS13.")
	fs.StringSliceVar(&o.cipherSuites, "tls-cipher-suites", nil, "Cipher suites for TLS 1.2. Empty: Go's own choice.")

	fs.StringVar(&o.clientCA, "client-ca-file", "", "CA bundle of client certificates. Empty: none are accepted.")
	fs.StringVar(&o.requestHeaderCA, "requestheader-client-ca-file", "", "CA bundle of front proxies that may say who their user is. Empty: none may.")
	fs.StringSliceVar(&o.allowedNames, "requestheader-allowed-names", nil, "Common names of such front proxies. Empty: any certificate of that CA.")
	fs.StringSliceVar(&o.usernameHeaders, "requestheader-username-headers", []string{"X-Remote-User"}, "Headers that a front proxy names its user in.")
	fs.StringSliceVar(&o.uidHeaders, "requestheader-uid-headers", nil, "Headers that a front proxy names its user's UID in. Empty: none is believed.")
	fs.StringSliceVar(&o.groupHeaders, "requestheader-group-headers", []string{"X-Remote-Group"}, "Headers that a front proxy names its user's groups in.")
	fs.StringSliceVar(&o.extraHeaderPrefixes, "requestheader-extra-headers-prefix", []string{"X-Remote-Extra-"}, "Prefixes of headers with a user's extra attributes.")
	fs.BoolVar(&o.authConfigMap, "authentication-configmap", false, "Take client and request-header CAs from kube-system/extension-apiserver-authentication. That ConfigMap never forgets a CA.")

	fs.StringVar(&o.proxyCert, "proxy-client-cert-file", "", "Certificate that proves to backends and to the local apiserver that this is their front proxy.")
	fs.StringVar(&o.proxyKey, "proxy-client-key-file", "", "Key of that certificate.")

	fs.BoolVar(&o.endpointRouting, "enable-aggregator-routing", true, "Send requests to endpoints. False: to the Service's ClusterIP.")
	fs.BoolVar(&o.rejectRedirects, "aggregator-reject-forwarding-redirect", true, "Answer a remote's redirects with 502 instead of passing them on.")
	fs.BoolVar(&o.allowLoopback, "allow-loopback-backends", false, "Allow backends on loopback addresses, and by names that only an egress proxy knows. They receive our client certificate.")
	fs.BoolVar(&o.allowURLs, "allow-url-backends", false, "Allow backends that APIServices name by URL (annotation fairlead.dev/url): who may write APIServices chooses who receives our client certificate. With --registry=dir: always allowed.")
	fs.StringSliceVar(&o.protectedGroups, "protected-groups", nil, "Groups that no remote may claim. Empty: Kubernetes' built-in ones. \"-\": none.")
	fs.DurationVar(&o.caOverlap, "ca-rotation-overlap", time.Minute, "How long a replaced CA of a backend stays trusted while nothing verifies with the new one. 0: not at all.")

	fs.DurationVar(&o.staleAfter, "discovery-stale-after", 0, "How long the resources of a failing backend stay Current in discovery. 0: for ever, while its APIService names the same Service.")

	fs.BoolVar(&o.anonymous, "anonymous-auth", false, "Serve remotes to callers without credentials, as system:anonymous.")
	fs.StringVar(&o.tokenFile, "token-auth-file", "", "Tokens where there is no local apiserver: lines of token,user,uid,\"groups\". Reloaded when it changes. Empty: none.")
	fs.StringVar(&o.authConfig, "authentication-config", "", "AuthenticationConfiguration of apiserver.config.k8s.io: who may be anonymous and, where there is no local apiserver, whose JWTs are believed (reloaded when it changes). A jwt section beside a local apiserver is an error. Empty: none.")
	fs.DurationVar(&o.tokenTTL, "authentication-token-webhook-cache-ttl", 10*time.Second, "How long a TokenReview is cached.")
	fs.StringVar(&o.authzMode, "authorization-mode", "", "Who authorizes requests to remotes: webhook (SubjectAccessReview at the local apiserver), RBAC (ClusterRoles of --registry=dir:), backend (the extension server alone) or AlwaysAllow (nobody, with --registry=dir: only). Empty: webhook, or RBAC without a local apiserver.")
	fs.StringSliceVar(&o.alwaysAllow, "authorization-always-allow-paths", []string{"/healthz", "/readyz", "/livez"}, "Paths of ours that need no authorization.")
	fs.DurationVar(&o.authorizedTTL, "authorization-webhook-cache-authorized-ttl", 10*time.Second, "How long an allowed SubjectAccessReview is cached.")
	fs.DurationVar(&o.unauthorizedTTL, "authorization-webhook-cache-unauthorized-ttl", 10*time.Second, "How long a denied SubjectAccessReview is cached.")

	fs.DurationVar(&o.requestTimeout, "request-timeout", time.Minute, "Bound of a request to a remote that is not long-running.")
	fs.IntVar(&o.maxConnections, "max-connections", 0, "Bound of client connections to the front door; more wait in the kernel's queue. 0: three quarters of the files that the process may have open.")
	fs.IntVar(&o.streamsPerConn, "http2-max-streams-per-connection", 250, "Concurrent streams that a client may open on one connection.")
	fs.Float64Var(&o.goawayChance, "goaway-chance", 0, "Chance that an HTTP/2 client is asked to reconnect after a request, at most 0.02: spreads clients over replicas.")
	fs.DurationVar(&o.shutdownDelay, "shutdown-delay-duration", 0, "How long to go on serving, unready, after SIGTERM.")
	fs.DurationVar(&o.watchGrace, "shutdown-watch-termination-grace-period", 0, "How long watches may go on after that.")
	fs.BoolVar(&o.sendRetryAfter, "shutdown-send-retry-after", false, "Answer new requests with 429 and Retry-After while draining.")
	fs.IntVar(&o.maxInFlight, "max-requests-inflight", 0, "Bound of non-mutating requests under way to remotes. 0: none.")
	fs.IntVar(&o.maxMutating, "max-mutating-requests-inflight", 0, "Bound of mutating requests under way to remotes. 0: none.")

	fs.StringVar(&o.egress, "egress-selector-config-file", "", "EgressSelectorConfiguration whose entry cluster says how backends are reached. Empty: directly.")
	fs.BoolVar(&o.writeStatus, "write-status", false, "Write the condition fairlead.dev/Available to APIServices, by the one replica that holds the Lease kube-system/fairlead-status.")
	fs.BoolVar(&o.emitEvents, "emit-events", false, "Report changed verdicts as Events on the APIServices, by the one replica that holds the Lease kube-system/fairlead-events.")

	fs.BoolVar(&o.publishEndpoints, "publish-kubernetes-endpoints", false, "Publish this replica, while it is ready, in the endpoints of the Service default/kubernetes. kube-apiserver must run with --endpoint-reconciler-type=none.")
	fs.StringVar(&o.advertiseAddress, "advertise-address", "", "Address at which clients in the cluster reach this replica, for --publish-kubernetes-endpoints. Empty: that of the environment variable POD_IP, or else --bind-address.")

	fs.BoolVar(&o.http2, "http2", true, "Offer HTTP/2 to clients. False: HTTP/1.1 alone, for emergencies; kube-apiserver's is --disable-http2-serving.")
	o.access.addFlags(fs)
	o.audit.addFlags(fs)
	fs.StringVar(&o.tracing, "tracing-config-file", "", "TracingConfiguration of apiserver.config.k8s.io: where spans of requests go, and of how many. Empty: no tracing.")
	fs.StringVar(&o.logFormat, "logging-format", "text", "Format of the log: text or json.")
	fs.IntVarP(&o.verbosity, "v", "v", 2, "Verbosity: 2 is normal, 4 and more is debug.")
}

// validate finds every fault of the command line before anything is opened: one line each.
func (o *options) validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }

	o.validatePair(fault, "--tls-cert-file", o.tlsCert, "--tls-private-key-file", o.tlsKey)
	o.validatePair(fault, "--proxy-client-cert-file", o.proxyCert, "--proxy-client-key-file", o.proxyKey)
	for flag, path := range map[string]string{"--client-ca-file": o.clientCA, "--requestheader-client-ca-file": o.requestHeaderCA, "--kubeconfig": o.kubeconfig} {
		checkReadable(fault, flag, path)
	}
	if o.clientCA != "" && o.clientCA == o.requestHeaderCA && len(o.allowedNames) == 0 {
		fault("--requestheader-allowed-names is required when --client-ca-file and --requestheader-client-ca-file are the same: any client could name its own user")
	}
	if net.ParseIP(o.bindAddress) == nil {
		fault("--bind-address %q is not an IP address", o.bindAddress)
	}
	for flag, port := range map[string]int{"--secure-port": o.securePort, "--admin-secure-port": o.adminPort} {
		if port < 0 || port > 65535 {
			fault("%s %d is not a port", flag, port)
		}
	}
	o.validateTLS(fault)
	if o.securePort != 0 && o.securePort == o.adminPort {
		fault("--secure-port and --admin-secure-port are both %d", o.securePort)
	}
	o.validateChoices(fault)
	return errors.Join(faults...)
}

func (o *options) validateTLS(fault func(string, ...any)) {
	for _, pair := range o.sniPairs {
		files, _, _ := strings.Cut(pair, ":")
		cert, key, ok := strings.Cut(files, ",")
		if !ok || cert == "" || key == "" {
			fault("--tls-sni-cert-key %q is not certfile,keyfile[:name,…]", pair)
			continue
		}
		checkReadable(fault, "--tls-sni-cert-key", cert)
		checkReadable(fault, "--tls-sni-cert-key", key)
	}
	known := map[string]bool{}
	for _, s := range tls.CipherSuites() {
		known[s.Name] = true
	}
	for _, name := range o.cipherSuites {
		if !known[name] {
			fault("--tls-cipher-suites: %q is not a cipher suite that is safe to use", name)
		}
	}
}

func (o *options) validateChoices(fault func(string, ...any)) {
	if o.registry != "kubernetes" && !strings.HasPrefix(o.registry, "dir:") {
		fault("--registry %q is neither kubernetes nor dir:PATH", o.registry)
	}
	o.validateAlone(fault)
	o.validateEntrypoint(fault)
	o.validateTokens(fault)
	o.validateAuthorization(fault)
	o.access.validate(fault)
	o.audit.validate(fault)
	checkReadable(fault, "--tracing-config-file", o.tracing)
	if o.logFormat != "text" && o.logFormat != "json" {
		fault("--logging-format %q is neither text nor json", o.logFormat)
	}
	if o.minTLSVersion != "VersionTLS12" && o.minTLSVersion != "VersionTLS13" {
		fault("--tls-min-version %q is neither VersionTLS12 nor VersionTLS13", o.minTLSVersion)
	}
	if o.goawayChance < 0 || o.goawayChance > 0.02 {
		fault("--goaway-chance %v is not between 0 and 0.02", o.goawayChance)
	}
	if o.maxConnections < 0 || o.streamsPerConn < 0 || o.maxInFlight < 0 || o.maxMutating < 0 {
		fault("limits cannot be negative")
	}
	for flag, d := range map[string]time.Duration{
		"--request-timeout": o.requestTimeout, "--shutdown-delay-duration": o.shutdownDelay, "--ca-rotation-overlap": o.caOverlap, "--discovery-stale-after": o.staleAfter,
		"--shutdown-watch-termination-grace-period": o.watchGrace, "--authentication-token-webhook-cache-ttl": o.tokenTTL,
	} {
		if d < 0 {
			fault("%s %s is negative", flag, d)
		}
	}
}

// validatePair wants both files of a required key pair.
func (o *options) validatePair(fault func(string, ...any), certFlag, cert, keyFlag, key string) {
	if cert == "" {
		fault("%s is required", certFlag)
	}
	if key == "" {
		fault("%s is required", keyFlag)
	}
	checkReadable(fault, certFlag, cert)
	checkReadable(fault, keyFlag, key)
}

func checkReadable(fault func(string, ...any), flag, path string) {
	if path == "" {
		return
	}
	f, err := os.Open(path)
	if err != nil {
		fault("%s: %w", flag, err)
		return
	}
	_ = f.Close() // it was only opened to see whether it can be
}
