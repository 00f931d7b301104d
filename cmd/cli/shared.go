package cli

import (
	"strings"

	"github.com/spf13/pflag"

	"github.com/fairlead-proxy/fairlead/certs"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/behind"
)

// Impersonate is the value of --local-identity with which Fairlead impersonates users at the local
// apiserver. The other one is front-proxy.
const Impersonate = "impersonate"

// Shared are the flags that serve and lint have in common.
type Shared struct {
	// Certs has the files of the flags, without SNI, and the common names of front proxies.
	Certs certs.Config
	// LocalIdentity is how Fairlead passes a user that it has authenticated to the local apiserver.
	LocalIdentity string
	// Behind is Fairlead's own Service, if the cluster's aggregator sends APIServices there.
	Behind string
	// Policy is as in registry.Config.
	Policy string

	table           registry.Options // what one flag alone decides
	sni             []string
	endpointRouting bool
	protectedGroups []string
}

// AddFlags adds the flags to their groups.
func (s *Shared) AddFlags(group func(name string) *pflag.FlagSet) {
	fs := group("serving certificate")
	fs.StringVar(&s.Certs.Serving.Cert, "tls-cert-file", "", "Serving certificate and its chain, in PEM. Required by serve, which reloads it when it changes.")
	fs.StringVar(&s.Certs.Serving.Key, "tls-private-key-file", "", "Private key of --tls-cert-file. Required by serve.")
	fs.StringArrayVar(&s.sni, "tls-sni-cert-key", nil, "Another serving certificate, as certfile,keyfile[:name,…]; repeat the flag for several.")
	fs = group("authentication")
	fs.StringVar(&s.Certs.ClientCA, "client-ca-file", "", "CA bundle that verifies client certificates. Empty: client certificates are not accepted.")
	fs.StringVar(&s.Certs.RequestHeaderCA, "requestheader-client-ca-file", "", "CA bundle that verifies front proxies, whose headers name the user. Empty: no front proxy is trusted.")
	fs.StringSliceVar(&s.Certs.AllowedNames, "requestheader-allowed-names", nil, "Common names of trusted front proxies. Empty: any certificate of --requestheader-client-ca-file.")
	fs = group("proxy client certificate")
	fs.StringVar(&s.Certs.ProxyClient.Cert, "proxy-client-cert-file", "", "Client certificate that identifies Fairlead as the front proxy, to backends and (unless --local-identity=impersonate) to the local apiserver. Required by serve, which reloads it when it changes.")
	fs.StringVar(&s.Certs.ProxyClient.Key, "proxy-client-key-file", "", "Private key of --proxy-client-cert-file. Required by serve.")
	fs.StringVar(&s.LocalIdentity, "local-identity", "front-proxy", "How Fairlead passes the user to the local apiserver: front-proxy (X-Remote-* headers, with --proxy-client-cert-file) or impersonate (Impersonate-* headers, with the credential of the kubeconfig or the pod; for clusters run by somebody else). Bearer tokens that only the cluster can verify are forwarded unchanged in both cases.")
	fs = group("backend")
	fs.BoolVar(&s.endpointRouting, "enable-aggregator-routing", true, "Send requests to the endpoints of a Service. False: to its ClusterIP.")
	fs.BoolVar(&s.table.Reach.AllowLoopback, "allow-loopback-backends", false, "Allow backends on loopback addresses, and host names that only an egress proxy can resolve. They receive Fairlead's client certificate.")
	fs.BoolVar(&s.table.AllowURLs, "allow-url-backends", false, "Allow APIServices to name their backend by URL (annotation fairlead.dev/url). Whoever can write APIServices then decides which host receives Fairlead's client certificate. Always on with --registry=dir: and etcd:.")
	fs.StringVar(&s.Behind, "behind", "", "Fairlead's own Service, NAMESPACE/NAME, to which the cluster's aggregator sends APIServices (docs/behind.md). Every front proxy is then that aggregator: it gets what it sends here, without another authorization, and nothing else. Empty: Fairlead is in front.")
	fs.StringVar(&s.Policy, "policy", "", "File or directory of the policy, or configmap:NAMESPACE/NAME (docs/policy.md): which server has what of an API. A file must be valid when Fairlead starts; later the last valid state stays. Empty: no policy.")
	fs.StringSliceVar(&s.protectedGroups, "protected-groups", nil, "API groups that no remote APIService may serve. Empty: the groups built into Kubernetes. \"-\": none.")
}

// Validate adds the faults of the flags.
func (s *Shared) Validate(f *Faults) {
	for _, given := range [][2]string{
		{"--tls-cert-file", s.Certs.Serving.Cert}, {"--tls-private-key-file", s.Certs.Serving.Key},
		{"--client-ca-file", s.Certs.ClientCA}, {"--requestheader-client-ca-file", s.Certs.RequestHeaderCA},
		{"--proxy-client-cert-file", s.Certs.ProxyClient.Cert}, {"--proxy-client-key-file", s.Certs.ProxyClient.Key},
	} {
		f.Readable(given[0], given[1])
	}
	for i, pair := range s.SNI() {
		if pair.Cert == "" || pair.Key == "" {
			f.Add("--tls-sni-cert-key %q is not certfile,keyfile[:name,…]", s.sni[i])
			continue
		}
		f.Readable("--tls-sni-cert-key", pair.Cert)
		f.Readable("--tls-sni-cert-key", pair.Key)
	}
	if s.Behind != "" {
		_, err := behind.Parse(s.Behind + ":443")
		f.If(err != nil, "--behind %q is not NAMESPACE/NAME", s.Behind)
	}
	if ref, inMap := PolicyMap(s.Policy); inMap {
		_, err := behind.Parse(ref + ":443")
		f.If(err != nil, "--policy %q is not configmap:NAMESPACE/NAME", s.Policy)
	} else {
		f.Readable("--policy", s.Policy)
	}
	f.If(s.LocalIdentity != "front-proxy" && s.LocalIdentity != Impersonate, "--local-identity %q is neither front-proxy nor impersonate", s.LocalIdentity)
}

// PolicyMap returns the ConfigMap of a value of --policy, NAMESPACE/NAME. It is empty for a path.
func PolicyMap(policy string) (ref string, inMap bool) {
	if ref, inMap = strings.CutPrefix(policy, "configmap:"); !inMap {
		ref = ""
	}
	return ref, inMap
}

// SNI returns the pairs of --tls-sni-cert-key, as kube-apiserver reads it. A value of another form
// yields a pair without a file, which Validate reports.
func (s *Shared) SNI() (pairs []certs.PairSource) {
	for _, text := range s.sni {
		files, names, _ := strings.Cut(text, ":")
		cert, key, _ := strings.Cut(files, ",")
		p := certs.PairSource{Cert: cert, Key: key}
		if names != "" {
			p.Names = strings.Split(names, ",")
		}
		pairs = append(pairs, p)
	}
	return pairs
}

// TableOptions returns the options of the table.
func (s *Shared) TableOptions() registry.Options {
	o := s.table
	o.ClusterIPRouting, o.ProtectedGroups = !s.endpointRouting, List(s.protectedGroups)
	o.Front.Namespace, o.Front.Name, _ = strings.Cut(s.Behind, "/")
	return o
}

// List reads a flag that has the usual values if none is given. "-" means none.
func List(flag []string, usual ...string) []string {
	switch {
	case len(flag) == 0:
		return usual
	case len(flag) == 1 && flag[0] == "-":
		return []string{}
	}
	return flag
}
