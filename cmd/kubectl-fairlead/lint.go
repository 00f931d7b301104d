package main

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/fairlead-proxy/fairlead/certs"
	"github.com/fairlead-proxy/fairlead/cmd/cli"
	"github.com/fairlead-proxy/fairlead/internal/printable"
	"github.com/fairlead-proxy/fairlead/registry"
)

type linter struct {
	cli.Shared // flags of serve
	certs.Findings
	kubeconfig string
	context    string // of the kubeconfig
	account    string // whose rights are asked for. Empty: Fairlead's
	current    bool   // nothing is given, so the cluster that kubectl would use is checked

	output    string
	namespace string   // of objects in files without a namespace
	names     []string // of the front door, as clients use them
	stdin     io.Reader

	claims  map[string]*registry.Entry // :: position in the files → remote entry
	foreign map[string]int             // :: kind → number of ignored objects
	usable  map[string]bool            // APIServices that kube-apiserver reports as Available
	proxy   *tls.Certificate           // of the flags. Nil means none, or an unreadable one

	survey      *survey
	listed      bool // the Service kubernetes has the address of each control-plane node, and no other
	byClusterIP bool // kube-apiserver's own aggregator dials ClusterIPs
}

func newLinter(groups *cliflag.NamedFlagSets) *linter {
	l := &linter{foreign: map[string]int{}, claims: map[string]*registry.Entry{}, output: "text"}
	l.AddFlags(groups.FlagSet)
	return l
}

func lintCommand() *cobra.Command {
	var groups cliflag.NamedFlagSets
	fs := groups.FlagSet("lint")
	l := newLinter(&groups)
	cmd := &cobra.Command{
		Use:   "lint [FILE…]",
		Short: "Find what is wrong, or soon will be, or is to be done before Fairlead is installed",
		Long:  long("lint"),
		RunE: func(cmd *cobra.Command, args []string) error {
			l.stdin = cmd.InOrStdin()
			if err := l.validate(args); err != nil {
				return cli.Usage(err)
			}
			l.files(args)
			l.own()
			if l.kubeconfig != "" || l.current {
				if cfg, err := l.config(); err != nil {
					l.Error("kubeconfig", "correct it", "--kubeconfig: %v", err)
				} else {
					l.inspect(cmd.Context(), cfg)
				}
			}
			for _, k := range slices.Sorted(maps.Keys(l.foreign)) {
				cmd.PrintErrf("ignored, because Fairlead does not read it: %s (%d)\n", printable.Line(k), l.foreign[k])
			}
			if err := cmd.Context().Err(); err != nil {
				return err // all that was not asked yet would be a finding
			}
			return l.report(cmd.OutOrStdout())
		},
	}
	fs.StringVar(&l.kubeconfig, "kubeconfig", "", "Kubeconfig of the local apiserver. Empty: no cluster is checked; "+
		"but if nothing else is given to check, the one that kubectl would use.")
	fs.StringVar(&l.context, "context", "", "Context of that kubeconfig. Empty: its current one.")
	fs.StringVar(&l.account, "account", "", "User whose rights are asked for. Empty: that of Fairlead's manifests.")
	fs.StringVarP(&l.namespace, "namespace", "n", "default", "Namespace of objects in files that name none.")
	fs.StringVarP(&l.output, "output", "o", "text", "Output format: text (a line for each finding) or json (a list).")
	fs.StringSliceVar(&l.names, "serving-names", nil,
		"Names and addresses that clients use for Fairlead; the serving certificate must be valid for each.")
	cli.Flags(cmd, groups)
	return cmd
}

func (l *linter) impersonates() bool { return l.LocalIdentity == cli.Impersonate }

func (l *linter) validate(files []string) error {
	f := &cli.Faults{}
	f.If(l.output != "text" && l.output != "json", "--output %q is neither text nor json", l.output)
	err := checkNames(l.names)
	f.If(err != nil, "%w", err)
	l.Validate(f)
	f.Readable("--kubeconfig", l.kubeconfig)
	for _, name := range files {
		if name != "-" {
			f.Readable("FILE", name)
		}
	}
	c, serving, proxy := &l.Certs, &l.Certs.Serving, &l.Certs.ProxyClient
	f.If((serving.Cert == "") != (serving.Key == ""), "--tls-cert-file and --tls-private-key-file go together")
	f.If((proxy.Cert == "") != (proxy.Key == ""), "--proxy-client-cert-file and --proxy-client-key-file go together")
	given := l.kubeconfig + serving.Cert + serving.Key + c.ClientCA + c.RequestHeaderCA + proxy.Cert + proxy.Key
	if given == "" && len(files)+len(l.SNI()) == 0 {
		_, err := l.config()
		l.current = !clientcmd.IsEmptyConfig(err)
		f.If(!l.current && l.Policy == "", "nothing to check: give files, --kubeconfig or certificates")
	}
	f.If(l.context != "" && l.kubeconfig == "" && !l.current, "--context needs --kubeconfig")
	return errors.Join(*f...)
}

func count(n int, of string) string {
	return fmt.Sprint(n, " ", of, map[bool]string{true: "s"}[n != 1])
}

func (l *linter) report(out io.Writer) error {
	counts := map[string]int{} // :: severity → findings
	for _, f := range l.Findings {
		counts[f.Severity]++
		if l.output == "text" {
			if _, err := fmt.Fprintln(out, printable.Line(f.String())); err != nil {
				return err
			}
		}
	}
	if l.output == "json" {
		e := json.NewEncoder(printable.JSON(out))
		e.SetIndent("", "  ")
		if err := e.Encode(append(certs.Findings{}, l.Findings...)); err != nil { // [] rather than null
			return err
		}
	}
	if failed := counts[certs.SeverityError]; failed > 0 {
		return fmt.Errorf("%s, %s", count(failed, "error"), count(counts[certs.SeverityWarning], "warning"))
	}
	return nil
}

func checkNames(names []string) error {
	for _, name := range names {
		if name == "" || net.ParseIP(name) == nil && strings.ContainsAny(name, ":/[ ") {
			return cli.Usage(fmt.Errorf("--serving-names: %q is neither a DNS name nor an IP address: "+
				"give it without scheme, port and path", name))
		}
	}
	return nil
}
