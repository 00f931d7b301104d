// Package cli is what Fairlead's commands share: how they are built, read common flags, report errors and exit.
//
// Only main's goroutine uses it.
package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/fairlead-proxy/fairlead/certs"
	"github.com/fairlead-proxy/fairlead/internal/printable"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/behind"
)

type usage struct{ error }

// Usage marks err as a mistake in the command line. err has one line per fault. Nil stays nil.
func Usage(err error) error {
	if err == nil {
		return nil
	}
	return usage{err}
}

// IsUsage reports whether err is a mistake in the command line.
func IsUsage(err error) bool { return errors.As(err, new(usage)) }

// Root makes a command with subcommands, and adds version. Unknown subcommands and arguments are usage errors.
func Root(use, short, version string, subcommands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: short, Version: fmt.Sprintf("%s (%s)", version, runtime.Version()),
		SilenceUsage: true, SilenceErrors: true, SuggestionsMinimumDistance: 2,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	// cobra's default version text stays: a template for it links text/template.
	cmd.SetFlagErrorFunc(seeHelp)
	cmd.AddCommand(subcommands...)
	cmd.AddCommand(versionCommand(version))
	cmd.InitDefaultCompletionCmd() // cobra would add it later
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		text := fmt.Sprintf("unknown command %q for %q", args[0], cmd.CommandPath())
		if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
			text += "; did you mean " + strings.Join(near, " or ") + "?"
		}
		return usage{errors.New(text)}
	}
	for _, c := range cmd.Commands() {
		if !c.Runnable() { // cobra does not check the arguments of such a command
			c.RunE = cmd.RunE
		}
		if check := c.Args; check != nil {
			c.Args = func(cmd *cobra.Command, args []string) error { return seeHelp(cmd, check(cmd, args)) }
		}
	}
	return cmd
}

func seeHelp(cmd *cobra.Command, err error) error {
	if err != nil {
		err = usage{fmt.Errorf("%w: see %s --help", err, cmd.CommandPath())}
	}
	return err
}

func versionCommand(version string) *cobra.Command {
	form := ""
	cmd := &cobra.Command{
		Use: "version", Short: "Print the version", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			text := fmt.Sprintf("fairlead %s (%s)", version, runtime.Version())
			if form == "json" {
				text = fmt.Sprintf(`{"version": %q, "goVersion": %q, "platform": "%s/%s"}`,
					version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			} else if form != "" {
				return usage{fmt.Errorf("--output %q is not json", form)}
			}
			_, err := fmt.Fprintln(cmd.OutOrStdout(), text)
			return err
		},
	}
	cmd.Flags().StringVarP(&form, "output", "o", "", "Output format: json.")
	return cmd
}

const columns = 100 // of help

// Flags adds flags to a command, which has a Long text, and help that shows them in their groups.
func Flags(cmd *cobra.Command, groups cliflag.NamedFlagSets) {
	for _, name := range groups.Order {
		cmd.Flags().AddFlagSet(groups.FlagSets[name])
	}
	cliflag.SetUsageAndHelpFunc(cmd, groups, columns)
}

// Faults are those of a command line, which are reported together.
type Faults []error

// Add adds a fault.
func (f *Faults) Add(format string, args ...any) { *f = append(*f, fmt.Errorf(format, args...)) }

// If adds a fault if something is wrong.
func (f *Faults) If(wrong bool, format string, args ...any) {
	if wrong {
		f.Add(format, args...)
	}
}

// Readable adds a fault if the file of a flag cannot be read. Empty means that there is none.
func (f *Faults) Readable(flag, path string) {
	file, err := os.Open(path)
	f.If(path != "" && err != nil, "%s: %w", flag, err)
	_ = file.Close() // only opened to check that it is readable
}

// Run runs a command. The first signal cancels its context, so that it can end cleanly; the second ends the process.
func Run(cmd *cobra.Command) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	return cmd.ExecuteContext(ctx)
}

// text returns err for a terminal: a server may have written it. Each fault of usage has a line.
func text(err error) string {
	if IsUsage(err) {
		return printable.Lines(err.Error())
	}
	return printable.Line(err.Error())
}

// Exit ends the process, after printing err if it is not nil. The exit code of a mistake in the
// command line, found before anything is done, is 2; that of any other error is 1.
func Exit(err error) {
	if err == nil {
		os.Exit(0)
	}
	fmt.Fprintln(os.Stderr, text(err))
	if IsUsage(err) {
		os.Exit(2)
	}
	os.Exit(1)
}

// Impersonate is the value of --local-identity, besides front-proxy: users are impersonated at the local apiserver.
const Impersonate = "impersonate"

// Shared are the flags that serve and lint have in common.
type Shared struct {
	Certs         certs.Config // has the files of the flags, without SNI, and the common names of front proxies
	LocalIdentity string       // how Fairlead passes a user that it has authenticated to the local apiserver
	Behind        string       // Fairlead's own Service, if the cluster's aggregator sends APIServices there
	Policy        string       // as in registry.Config

	table           registry.Options // what one flag alone decides
	sni             []cliflag.NamedCertKey
	endpointRouting bool
}

// AddFlags adds the flags to their groups.
func (s *Shared) AddFlags(group func(name string) *pflag.FlagSet) {
	fs := group("serving certificate")
	fs.StringVar(&s.Certs.Serving.Cert, "tls-cert-file", "",
		"Serving certificate and its chain, in PEM. Required by serve, which reloads it when it changes.")
	fs.StringVar(&s.Certs.Serving.Key, "tls-private-key-file", "", "Private key of --tls-cert-file. Required by serve.")
	fs.Var(cliflag.NewNamedCertKeyArray(&s.sni), "tls-sni-cert-key",
		"Another serving certificate, as certfile,keyfile[:name,…]; repeat the flag for several.")
	fs = group("authentication")
	fs.StringVar(&s.Certs.ClientCA, "client-ca-file", "",
		"CA bundle that verifies client certificates. Empty: client certificates are not accepted.")
	fs.StringVar(&s.Certs.RequestHeaderCA, "requestheader-client-ca-file", "",
		"CA bundle that verifies front proxies, whose headers name the user. Empty: no front proxy is trusted.")
	fs.StringSliceVar(&s.Certs.AllowedNames, "requestheader-allowed-names", nil,
		"Common names of trusted front proxies. Empty: any certificate of --requestheader-client-ca-file.")
	fs = group("proxy client certificate")
	fs.StringVar(&s.Certs.ProxyClient.Cert, "proxy-client-cert-file", "", "Client certificate that identifies "+
		"Fairlead as the front proxy, to backends and (unless --local-identity=impersonate) to the local apiserver. "+
		"Required by serve, which reloads it when it changes.")
	fs.StringVar(&s.Certs.ProxyClient.Key, "proxy-client-key-file", "",
		"Private key of --proxy-client-cert-file. Required by serve.")
	fs.StringVar(&s.LocalIdentity, "local-identity", "front-proxy", "How Fairlead passes the user to the local "+
		"apiserver: front-proxy (X-Remote-* headers, with --proxy-client-cert-file) or impersonate (Impersonate-* "+
		"headers, with the credential of the kubeconfig or the pod; for clusters run by somebody else). Bearer tokens "+
		"that only the cluster can verify are forwarded unchanged in both cases.")
	fs = group("backend")
	fs.BoolVar(&s.endpointRouting, "enable-aggregator-routing", true,
		"Send requests to the endpoints of a Service. False: to its ClusterIP.")
	fs.BoolVar(&s.table.Reach.AllowLoopback, "allow-loopback-backends", false, "Allow backends on loopback addresses, "+
		"and host names that only an egress proxy can resolve. They receive Fairlead's client certificate.")
	fs.BoolVar(&s.table.AllowURLs, "allow-url-backends", false,
		"Allow APIServices to name their backend by URL (annotation fairlead.dev/url). Whoever can write APIServices "+
			"then decides which host receives Fairlead's client certificate. Always on with --registry=dir: and etcd:.")
	fs.StringVar(&s.Behind, "behind", "", "Fairlead's own Service, NAMESPACE/NAME, to which the cluster's aggregator "+
		"sends APIServices (docs/behind.md). Every front proxy is then that aggregator: it gets what it sends here, "+
		"without another authorization, and nothing else. Empty: Fairlead is in front.")
	fs.StringVar(&s.Policy, "policy", "",
		"File or directory of the policy, or configmap:NAMESPACE/NAME (docs/policy.md): which server has what of an "+
			"API. A file must be valid when Fairlead starts; later the last valid state stays. Empty: no policy.")
	fs.StringSliceVar(&s.table.ProtectedGroups, "protected-groups", nil,
		"API groups that no remote APIService may serve. Empty: the groups built into Kubernetes. \"-\": none.")
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
	for _, pair := range s.SNI() {
		f.If(pair.Cert == "" || pair.Key == "", "--tls-sni-cert-key needs a certificate and its key")
		f.Readable("--tls-sni-cert-key", pair.Cert)
		f.Readable("--tls-sni-cert-key", pair.Key)
	}
	if s.Behind != "" {
		_, err := behind.Parse(s.Behind + ":443")
		f.If(err != nil, "--behind %q is not NAMESPACE/NAME", s.Behind)
	}
	if ref, inMap := PolicyMap(s.Policy); inMap {
		namespace, name, _ := strings.Cut(ref, "/")
		f.If(len(validation.IsDNS1123Label(namespace))+len(validation.IsDNS1123Subdomain(name)) > 0,
			"--policy %q is not configmap:NAMESPACE/NAME", s.Policy)
	} else {
		f.Readable("--policy", s.Policy)
	}
	f.If(s.LocalIdentity != "front-proxy" && s.LocalIdentity != Impersonate,
		"--local-identity %q is neither front-proxy nor impersonate", s.LocalIdentity)
}

// PolicyMap returns the ConfigMap of a value of --policy, NAMESPACE/NAME. It is empty for a path.
func PolicyMap(policy string) (ref string, inMap bool) {
	if ref, inMap = strings.CutPrefix(policy, "configmap:"); !inMap {
		ref = ""
	}
	return ref, inMap
}

// SNI returns the pairs of --tls-sni-cert-key.
func (s *Shared) SNI() (pairs []certs.PairSource) {
	for _, p := range s.sni {
		pairs = append(pairs, certs.PairSource{Cert: p.CertFile, Key: p.KeyFile, Names: p.Names})
	}
	return pairs
}

// TableOptions returns the options of the table.
func (s *Shared) TableOptions() registry.Options {
	o := s.table
	o.ClusterIPRouting, o.ProtectedGroups = !s.endpointRouting, List(o.ProtectedGroups)
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
