package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fairlead-proxy/fairlead/certs"
	"github.com/fairlead-proxy/fairlead/cmd/cli"
)

// linter is one run of lint.
type linter struct {
	// Flags of serve that say who trusts whom, spelled as there.
	kubeconfig      string
	tlsCert, tlsKey string
	sniPairs        []string
	clientCA        string
	requestHeaderCA string
	allowedNames    []string

	proxyCert, proxyKey string

	endpointRouting bool
	allowLoopback   bool
	allowURLs       bool
	protectedGroups []string

	output string
	names  []string // that clients use for the front door
	stdin  io.Reader

	found []certs.Finding
}

func lintCommand() *cobra.Command {
	l := &linter{}
	cmd := &cobra.Command{
		Use:   "lint [FILE…]",
		Short: "Find what is wrong, or soon will be, with APIServices and certificates",
		Long: `Find what is wrong, or soon will be, and say what to do about it: one line for each finding.

FILE is a manifest, a directory of them, or - for standard input: each APIService in it is checked without a cluster, against the Services and
ConfigMaps beside it. With --kubeconfig the cluster's own APIServices are checked, their bundles against what their backends present at this
moment, and the certificates that the other flags name (give those of serve) against what the cluster trusts.

Exit code 0: nothing is wrong, though there may be warnings. 1: something is. 2: the command line is.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			l.stdin = cmd.InOrStdin()
			if err := l.validate(args); err != nil {
				return cli.Usage(err)
			}
			l.files(args)
			l.own()
			if l.kubeconfig != "" {
				l.live(cmd.Context())
			}
			return l.report(cmd.OutOrStdout())
		},
	}
	l.addFlags(cmd.Flags())
	cmd.Flags().SortFlags = false
	return cmd
}

func (l *linter) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&l.kubeconfig, "kubeconfig", "", "Kubeconfig of the local apiserver. Empty: no cluster is checked.")
	fs.StringVar(&l.tlsCert, "tls-cert-file", "", "Serving certificate (PEM, chain).")
	fs.StringVar(&l.tlsKey, "tls-private-key-file", "", "Key of the serving certificate.")
	fs.StringArrayVar(&l.sniPairs, "tls-sni-cert-key", nil, "A further serving pair, certfile,keyfile[:name,…]; may repeat.")
	fs.StringVar(&l.clientCA, "client-ca-file", "", "CA bundle of client certificates.")
	fs.StringVar(&l.requestHeaderCA, "requestheader-client-ca-file", "", "CA bundle of front proxies that may name their user.")
	fs.StringSliceVar(&l.allowedNames, "requestheader-allowed-names", nil, "Common names of such front proxies. Empty: any certificate of that CA.")
	fs.StringVar(&l.proxyCert, "proxy-client-cert-file", "", "Certificate by which backends and the local apiserver know Fairlead as their front proxy.")
	fs.StringVar(&l.proxyKey, "proxy-client-key-file", "", "Key of that certificate.")
	fs.BoolVar(&l.endpointRouting, "enable-aggregator-routing", true, "Requests are sent to endpoints. False: to the Service's ClusterIP.")
	fs.BoolVar(&l.allowLoopback, "allow-loopback-backends", false, "Backends may have loopback addresses.")
	fs.BoolVar(&l.allowURLs, "allow-url-backends", false, "Backends may be named by the annotation fairlead.dev/url.")
	fs.StringSliceVar(&l.protectedGroups, "protected-groups", nil, "Groups that no remote may claim. Empty: Kubernetes' built-in ones. \"-\": none.")
	fs.StringVarP(&l.output, "output", "o", "text", "Form of the findings: text (a line each) or json (a list).")
	fs.StringSliceVar(&l.names, "serving-names", nil, "Names and addresses that clients use for Fairlead; the serving certificate must be valid for each.")
}

// validate finds mistakes of the command line; a file that is missing is one.
func (l *linter) validate(files []string) error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	readable := func(name, path string) {
		f, err := os.Open(path)
		if err != nil {
			fault("%s: %w", name, err)
			return
		}
		_ = f.Close() // it was only opened to see whether it can be
	}
	if l.output != "text" && l.output != "json" {
		fault("--output %q is neither text nor json", l.output)
	}
	nothing := len(files) == 0 && len(l.sniPairs) == 0
	for _, given := range []struct{ flag, path string }{
		{"--kubeconfig", l.kubeconfig}, {"--tls-cert-file", l.tlsCert}, {"--tls-private-key-file", l.tlsKey}, {"--client-ca-file", l.clientCA},
		{"--requestheader-client-ca-file", l.requestHeaderCA}, {"--proxy-client-cert-file", l.proxyCert}, {"--proxy-client-key-file", l.proxyKey},
	} {
		if given.path != "" {
			nothing = false
			readable(given.flag, given.path)
		}
	}
	for _, f := range files {
		if f != "-" {
			readable("FILE", f)
		}
	}
	if (l.tlsCert == "") != (l.tlsKey == "") {
		fault("--tls-cert-file and --tls-private-key-file go together")
	}
	if (l.proxyCert == "") != (l.proxyKey == "") {
		fault("--proxy-client-cert-file and --proxy-client-key-file go together")
	}
	for _, pair := range l.sniPairs {
		if cert, key, _ := splitSNI(pair); cert == "" || key == "" {
			fault("--tls-sni-cert-key %q is not certfile,keyfile[:name,…]", pair)
		} else {
			readable("--tls-sni-cert-key", cert)
			readable("--tls-sni-cert-key", key)
		}
	}
	if nothing {
		fault("nothing to check: name files, or the cluster with --kubeconfig, or certificates")
	}
	return errors.Join(faults...)
}

// splitSNI reads certfile,keyfile[:name,…].
func splitSNI(pair string) (cert, key, names string) {
	files, names, _ := strings.Cut(pair, ":")
	cert, key, _ = strings.Cut(files, ",")
	return cert, key, names
}

// error and warn add a finding.
func (l *linter) error(object, do, format string, args ...any) {
	l.found = append(l.found, certs.Finding{Severity: certs.SeverityError, Object: object, Message: fmt.Sprintf(format, args...), Do: do})
}

func (l *linter) warn(object, do, format string, args ...any) {
	l.found = append(l.found, certs.Finding{Severity: certs.SeverityWarning, Object: object, Message: fmt.Sprintf(format, args...), Do: do})
}

// report prints the findings. Its error says that there are some of severity error.
func (l *linter) report(out io.Writer) error {
	failed := 0
	for _, f := range l.found {
		if f.Severity == certs.SeverityError {
			failed++
		}
		if l.output == "text" {
			if _, err := fmt.Fprintln(out, printable(f.String())); err != nil {
				return err
			}
		}
	}
	if l.output == "json" {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		if err := e.Encode(append([]certs.Finding{}, l.found...)); err != nil { // [] rather than null
			return err
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d errors, %d warnings", failed, len(l.found)-failed)
	}
	return nil
}
